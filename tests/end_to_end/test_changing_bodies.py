"""A body that does something else in other steps: a replacement has rehearsed one of them, and is equal in all."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
SCRIPT = str(SCRIPTS / "changing_bodies.py")


def run(folder: Path, body: str, *kill: str) -> Run:
    script = (SCRIPT, body, str(folder), *(("--kill", *kill) if kill else ()))
    with understudy_run(folder, *script, ranks=3, spares=int(bool(kill))) as job:
        assert job.wait(120) == 0, job.output
    return read_run(job.run_dir)


@pytest.mark.parametrize(("body", "kill"), [("gan", ("1:2", "6:0")), ("freezing", ("9:1",))])
def test_a_body_that_differs_by_step_is_exact_after_a_swap(tmp_path: Path, body: str, kill: tuple[str, ...]) -> None:
    expected = run(tmp_path / "quiet", body)
    found = run(tmp_path / "hurt", body, *kill)
    comparison = compare(expected, found)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    swapped = [f"{recovery.step}:{swap[0]}" for recovery in found.recoveries for swap in recovery.swaps]
    assert swapped == list(kill)


def test_a_replacement_with_another_total_of_steps_is_refused_and_the_job_ends(tmp_path: Path) -> None:
    with understudy_run(tmp_path, SCRIPT, "resuming", str(tmp_path), "--kill", "5:1") as job:
        job.wait(60)
    assert "its total of steps is 9, but the job's is 14" in job.output
    assert "let every rank and every replacement read the same one" in job.output
