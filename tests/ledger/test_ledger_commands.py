"""`verify` and `explain` as a person meets them: what they print and how they exit."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger.made_up import all_places, bare, committed, swap_decisions, write_run

from understudy.cli import explain, verify


def run_verify(one: Path, two: Path) -> int:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    return verify.main(parser.parse_args([str(one), str(two)]))


def run_explain(run: Path) -> int:
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    return explain.main(parser.parse_args([str(run)]))


def test_identical_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inherited = committed(1, 1, member="m-2", generation=2, inherited=True)
    one = write_run(tmp_path / "quiet", all_places())
    two = write_run(tmp_path / "faulty", [*all_places(), inherited], swap_decisions())
    assert run_verify(one, two) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"A  {one}: 3 steps, 2 ranks, digests at 3 steps, 0 recoveries",
        f"B  {two}: 3 steps, 2 ranks, digests at 3 steps, 1 recovery, 1 record told twice, in agreement",
        "compared  6 places (step x rank): batch 6, parameters 6, optimizer 6, rng 6",
        "identical: 3 steps on 2 ranks",
    ]


def test_different_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_run(tmp_path / "a", all_places())
    two = write_run(tmp_path / "b", [*all_places()[:-1], committed(2, 1, parameters="x")])
    assert run_verify(one, two) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "different, first at step 2, rank 1, parameters: p2 in A, x in B"


def test_weak_and_empty_runs_have_their_own_exit_code(tmp_path: Path) -> None:
    weak = write_run(tmp_path / "weak", [bare(0, rank) for rank in range(2)])
    empty = write_run(tmp_path / "empty", [])
    assert run_verify(weak, weak) == 3
    assert run_verify(empty, empty) == 3


def test_unreadable_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_run(tmp_path / "good", all_places())
    assert run_verify(good, tmp_path / "nowhere") == 2
    assert "is not the folder of a run" in capsys.readouterr().err
    double = write_run(tmp_path / "double", [committed(0, 0), committed(0, 0)])
    assert run_verify(good, double) == 2
    assert "committed twice by the same member" in capsys.readouterr().err


def test_explain_tells_the_story_in_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(write_run(tmp_path, all_places(), swap_decisions())) == 0
    out = capsys.readouterr().out
    assert "recovery 1, +2.000 s\n  why        rank 1 (member m-1) was lost: killed by signal 9\n" in out
    assert "\x1b" not in out, "no colours when nobody looks"
    assert out.splitlines()[-2:] == [
        "summary",
        "  3 steps committed by every rank, 1 recovery, median recovery 250.0 ms, total downtime 250.0 ms, "
        "0 start overs",
    ]


def test_explain_of_an_unreadable_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(tmp_path) == 2
    assert "unreadable" in capsys.readouterr().err


def test_the_commands_never_import_the_engine() -> None:
    code = "import sys, understudy.cli.verify, understudy.cli.explain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0
