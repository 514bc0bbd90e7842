"""`understudy doctor`: what is wrong is said with what to change."""

from pathlib import Path

import pytest
from tests.ledger.made_up import all_places, write_run

from understudy.cli.main import main
from understudy.ledger.records import DecisionRecord

ALONE = "ranks 1, 3 of 4 have no twin"


def test_this_host_can_run_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "ok    torch 2.15" in output and "BAD" not in output


def test_an_old_torch_is_said_to_keep_it_from_working(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.9.1+cu128")
    assert main(["doctor"]) == 1
    assert "BAD   torch 2.9.1+cu128\n      groups can be formed again in place from 2.15 on" in capsys.readouterr().out


def test_ranks_without_a_twin_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warning = DecisionRecord(at=101.0, generation=1, kind="warn", reason=ALONE)
    folder = write_run(tmp_path / "run", all_places(), [warning])
    assert main(["doctor", str(folder)]) == 0
    assert f"note  {folder}: {ALONE}" in capsys.readouterr().out


def test_a_run_in_which_everybody_has_a_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(write_run(tmp_path / "run", all_places()))]) == 0
    assert "every rank's state was held by another rank as well" in capsys.readouterr().out


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 2
    assert "unreadable" in capsys.readouterr().err
