"""`verify` and `explain` as a person meets them: what they print and how they exit."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger.made_up import all_places, bare, committed, swap_decisions, write_run

from understudy.cli import explain, verify
from understudy.cli.doctor import flaws_of
from understudy.ledger.reading import read_run
from understudy.ledger.records import DecisionRecord


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
    damaged = write_run(tmp_path / "damaged", all_places())
    (damaged / "ledger" / "steps-m-0.jsonl").write_bytes(b"{\n{\n")
    assert run_verify(good, damaged) == 2
    assert "steps-m-0.jsonl line 1 is damaged" in capsys.readouterr().err


def test_a_run_that_contradicts_itself_is_told_by_all_three_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a finding about the run, and its ledger can be read very well."""
    good = write_run(tmp_path / "good", all_places())
    other = committed(1, 1, member="m-2", generation=2, inherited=True, parameters="x")
    odd = write_run(tmp_path / "odd", [*all_places(), other], swap_decisions())
    assert run_verify(good, odd) == 1
    assert "different: B contradicts itself at step 1, rank 1: two values of parameters" in capsys.readouterr().out
    assert run_explain(odd) == 0
    out = capsys.readouterr().out
    assert "contradicts  step 1, rank 1: two values of parameters, p1 committed by m-1" in out
    assert "recovery 1, +2.000 s" in out
    (finding,) = flaws_of(read_run(odd))
    assert "contradicts itself at step 1, rank 1" in finding.what and not finding.good and not finding.wrong


def test_a_ledger_that_could_not_be_written_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_run(tmp_path / "good", all_places(6))
    records = [record for record in all_places(6) if record.step not in (3, 4)]
    short = write_run(tmp_path / "short", records, incomplete=["decisions", "m-0", "m-1"])
    assert run_verify(good, short) == 3
    out = capsys.readouterr().out
    assert "incomplete: decisions, m-0, m-1" in out
    assert "identical in all that both have" in out and "4 records are missing, of ranks 0, 1, steps 3 to 4" in out
    assert run_explain(short) == 0
    out = capsys.readouterr().out
    assert "not everything could be written by m-0" in out
    assert "4 records missing between steps 3 and 4, of rank 0, 1" in out
    assert len(list(flaws_of(read_run(short)))) == 3


def test_a_run_that_began_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_run(tmp_path / "whole", all_places(6))
    resumed = DecisionRecord(at=1.0, generation=1, kind="checkpoint", reason="checkpoint: it began ...", step=4)
    late = write_run(tmp_path / "late", [record for record in all_places(6) if record.step >= 4], [resumed])
    assert run_verify(whole, late) == 0
    out = capsys.readouterr().out
    assert "began at step 4" in out and "4 places (step x rank)" in out
    assert "identical from step 4 on (B began there, from a checkpoint): 2 steps on 2 ranks" in out
    assert run_explain(late) == 0
    assert "2 steps committed by every rank" in capsys.readouterr().out


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
