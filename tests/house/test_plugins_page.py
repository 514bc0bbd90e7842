"""docs/plugins.md says of every kind what the table in the code says."""

import re

import pytest
from tests.house.sources import ROOT

from understudy.plugins.kinds import KINDS, Kind

PAGE = (ROOT / "docs" / "plugins.md").read_text()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_page_names_contract_version_and_built_in_plugins(kind: Kind) -> None:
    (row,) = re.findall(rf"^\| {kind.name} \|.*$", PAGE, re.MULTILINE)
    _, contract, version, built_in, _, suite = (cell.strip() for cell in row.strip("| ").split("|")[1:])
    module = kind.contract.partition(":")[0].replace(".", "/")
    assert f"(../src/{module}.py)" in contract
    assert version == str(kind.version)
    assert re.findall(r"`([^`]+)`", built_in) == list(kind.built_in)
    assert suite == f"`{kind.name}s`"
    assert f"`{kind.group}`" in PAGE
