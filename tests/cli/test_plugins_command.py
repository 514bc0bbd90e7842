"""`understudy plugins`: what is there, whether it works, and what the suites say."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.house.sources import ROOT
from tests.plugins.made_up_packages import FINE, install

from understudy.cli.main import main
from understudy.plugins.kinds import DETECTOR, KINDS, STORE

CRIES = FINE.replace("return ()", "return 'wolf'")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "understudy" / "suites.json"


@pytest.fixture
def testkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would have left it: its entry points as they are in its pyproject.toml now."""
    project = tomllib.loads((ROOT / "testkit" / "pyproject.toml").read_text())["project"]
    install(tmp_path, monkeypatch, "understudy-testkit", project["entry-points"])
    assert set(project["entry-points"]["understudy.suites"]) == {kind.name for kind in KINDS}


def listed(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    code = main(["plugins", *flags])
    return code, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_plugins_are_listed_with_their_package_and_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {DETECTOR.group: {"fine": "listed_fine:Fine", "gone": "listed_gone:Fine"}}
    install(tmp_path, monkeypatch, "acme", entries, {"listed_fine": FINE})
    code, lines = listed(capsys, "--kind", "detector")
    assert code == 1, "one cannot be used"
    assert lines[0].startswith("detector straggler understudy ") and lines[0].endswith("usable suite: not run yet")
    assert lines[2] == "detector fine acme 1.0 contract 1 usable suite: not run yet"
    assert lines[3].startswith("detector gone acme 1.0 contract 1 left out the detector 'gone' of acme 1.0 cannot be")
    assert len(lines) == 4


def test_a_kind_without_any_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "--kind", "scheduler") == (0, ["scheduler: none; understudy has none itself yet"])


@pytest.mark.usefixtures("testkit")
def test_suites_are_run_and_what_they_said_is_kept_by_the_version_of_the_package(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {DETECTOR.group: {"fine": "checked_fine:Fine", "wolf": "checked_wolf:Fine"}}
    install(tmp_path, monkeypatch, "acme", entries, {"checked_fine": FINE, "checked_wolf": CRIES})
    code, lines = listed(capsys, "--kind", "detector", "--check")
    assert code == 1
    assert [line.partition("suite: ")[2].partition(":")[0] for line in lines] == ["passed"] * 3 + ["FAILED"]
    assert "returned a str, not a tuple" in lines[3]
    assert own_cache.stat().st_mode & 0o777 == 0o600
    code, again = listed(capsys, "--kind", "detector")
    assert code == 1 and "suite: passed (" in again[2] and "suite: FAILED: survives everything" in again[3]
    install(tmp_path / "newer", monkeypatch, "acme", entries, version="1.1")
    code, newer = listed(capsys, "--kind", "detector")
    assert code == 0 and newer[3].endswith("acme 1.1 contract 1 usable suite: not run yet")


@pytest.mark.usefixtures("testkit")
def test_a_store_is_checked_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = listed(capsys, "--kind", "store", "--check")
    assert code == 0
    assert lines[0].endswith("suite: passed") and lines[1].endswith("suite: not run: give --store etcd://...")


def test_without_the_testkit_its_name_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("understudy.cli.plugins.entry_points", lambda **_: ())
    code, lines = listed(capsys, "--kind", "store", "--check")
    assert code == 0 and all(line.endswith("suite: not run: pip install understudy-testkit") for line in lines)


@pytest.mark.parametrize("content", ["", "{", "[1]", json.dumps({"store": 3})])
def test_a_damaged_cache_does_no_harm(content: str, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text(content)
    code, lines = listed(capsys, "--kind", STORE.name)
    assert code == 0 and lines[0].endswith("suite: not run yet")
