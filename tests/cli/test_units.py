"""The systemd units name flags that exist, and every setting that they use is described."""

import argparse
import re
from pathlib import Path

import pytest

from understudy.cli import coordinator, run

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


@pytest.mark.parametrize(("name", "command"), [("coordinator", coordinator), ("agent", run)])
def test_a_unit_uses_what_the_command_knows(name: str, command: object) -> None:
    text = (UNITS / f"understudy-{name}.service").read_text()
    started = re.search(r"^ExecStart=(.*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    assert started is not None
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]  # both are commands
    known = {flag for action in parser._actions for flag in action.option_strings}
    used = set(re.findall(r"(--[a-z-]+)", started[1]))
    assert used and used <= known
    described = {line.split("=")[0].split()[-1] for line in re.findall(r"[A-Z_]+=", text.split("[Unit]")[0])}
    assert set(re.findall(r"\$\{?([A-Z_]+)", started[1])) == described
