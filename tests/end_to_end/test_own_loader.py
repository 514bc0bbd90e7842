"""The script's own DataLoader, with worker processes, through the loss of a rank and of a worker."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.exactly_once import prove
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SCRIPT = str(SCRIPTS / "own_loader.py")
STEPS = 3 * 6  # each rank has 11 samples per epoch, in batches of 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """The run without a fault; one per set of flags."""
    known: dict[tuple[str, ...], Run] = {}

    def find(*flags: str) -> Run:
        if flags not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            with understudy_run(folder, SCRIPT, str(folder), *flags, spares=0) as job:
                assert job.wait() == 0, job.output
            assert f"step {STEPS - 1} epoch 2" in job.output
            known[flags] = read_run(job.run_dir)
        return known[flags]

    return find


@pytest.mark.parametrize(
    "flags",
    [(), ("--tracked",), ("--stateful",), ("--stream",)],
    ids=["workers", "tracked", "stateful", "stream"],
)
def test_a_killed_rank_reads_on_where_it_was(
    tmp_path: Path, undisturbed: Callable[..., Run], flags: tuple[str, ...]
) -> None:
    """In its backward pass: the other rank has changed its batch in place, and runs the step again."""
    if flags in [("--stateful",), ("--stream",)]:
        pytest.importorskip("torchdata", reason="the loader is torchdata's")
    expected = undisturbed(*flags)
    with understudy_run(tmp_path, SCRIPT, str(tmp_path), "--kill-at", "8", *flags) as job:
        assert job.wait() == 0, job.output
    assert (tmp_path / "killed").exists()
    run = read_run(job.run_dir)
    comparison = compare(expected, run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [swap[0] for recovery in run.recoveries for swap in recovery.swaps] == [1]
    if flags in [(), ("--tracked",)]:
        assert job.output.count("workers left: 0") == 2, "the loop has ended its workers"


def test_a_dead_worker_is_an_error_of_its_rank_that_names_it(tmp_path: Path, undisturbed: Callable[..., Run]) -> None:
    with understudy_run(tmp_path, SCRIPT, str(tmp_path), "--kill-at", "8", "--victim", "worker") as job:
        assert job.wait() == 0, job.output
    assert (tmp_path / "killed").exists()
    assert "DataLoader worker (pid" in job.output, job.output
    comparison = compare(undisturbed(), read_run(job.run_dir))
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()


def test_without_a_spare_the_others_take_its_samples(tmp_path: Path) -> None:
    with understudy_run(tmp_path, SCRIPT, str(tmp_path), "--kill-at", "8", spares=0) as job:
        assert job.wait() == 0, job.output
    assert (tmp_path / "killed").exists()
    proof = prove(read_run(job.run_dir))
    assert proof.holds and min(proof.degraded) == 8, proof.sentence()
