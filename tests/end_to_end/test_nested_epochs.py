"""Epochs as nested loops, with accumulation, workers, evaluation and early stopping: exact wherever a rank is lost."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SCRIPT = str(SCRIPTS / "nested_epochs.py")
EPOCHS = 5  # of six: the script ends its loop earlier


def run(folder: Path, *kill: str) -> Run:
    script = (SCRIPT, str(folder), *(("--kill", *kill) if kill else ()))
    with understudy_run(folder, *script, ranks=2, spares=int(bool(kill))) as job:
        assert job.wait(200) == 0, job.output
    assert len(list(folder.glob("killed-*"))) == len(kill), "a fault did not fire"
    return read_run(job.run_dir)


def results_of(folder: Path, rank: int) -> dict[str, set[str]]:
    """What each epoch's evaluation found. A line may be there twice, after a section has run again."""
    found: dict[str, set[str]] = {}
    for line in (folder / f"results-{rank}.txt").read_text().splitlines():
        epoch, loss = line.split()
        found.setdefault(epoch, set()).add(loss)
    return found


def test_it_is_exact_wherever_a_rank_is_lost(tmp_path: Path) -> None:
    quiet, hurt = tmp_path / "quiet", tmp_path / "hurt"
    expected = run(quiet)
    found = run(hurt, "evaluate:1:0", "body:7:0", "save:3:1")
    comparison = compare(expected, found)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [swap[0] for recovery in found.recoveries for swap in recovery.swaps] == [0, 0, 1]
    for rank in (0, 1):
        told = results_of(quiet, rank)
        assert list(told) == [str(epoch) for epoch in range(EPOCHS)]
        assert all(losses == told[epoch] for epoch, losses in results_of(hurt, rank).items())
    assert set(results_of(hurt, 0)) | set(results_of(hurt, 1)) == set(results_of(quiet, 0))
