"""A device and a family that a script brings itself, through the seams: the path of a late device is taken, exactly."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SCRIPT = str(SCRIPTS / "late_device.py")
STEPS = 6


def run(folder: Path, kind: str, *place: str, ranks: int = 2, says: str = "") -> Run:
    folder.mkdir(exist_ok=True)
    flags = ("--ledger-digests", "word-sums")  # as on devices, on the CPU too, so that both can be compared
    script = (SCRIPT, str(folder), kind, *place)
    with understudy_run(folder, *script, ranks=ranks, spares=ranks - 1, flags=flags) as job:
        assert job.wait() == 0, job.output
        assert says in job.output
    assert (folder / "struck").exists() == bool(place)
    return read_run(job.run_dir)


def asked(folder: Path, what: str) -> list[int]:
    """How often in each process."""
    return sorted(len(file.read_text()) for file in folder.glob(f"{what}.*"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("plain")
    undisturbed = run(folder, "plain")
    assert not list(folder.glob("*.[0-9]*")), "on the CPU nothing is asked"
    return undisturbed


@pytest.mark.parametrize("place", ["backward", "fence", "optimizer"])
def test_a_loss_on_a_device_that_runs_behind(tmp_path: Path, plain: Run, place: str) -> None:
    struck = run(tmp_path, "late", place)
    comparison = compare(plain, struck)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [swap[0] for recovery in struck.recoveries for swap in recovery.swaps] == [1]
    assert asked(tmp_path, "recorded")[-1] >= STEPS - 1, "twins meet at a fence too, from the second step on"
    assert asked(tmp_path, "drained") == asked(tmp_path, "probed") != [], "a survivor comes to rest"
    assert asked(tmp_path, "settled")[-1] >= STEPS, "digests are taken of what has come to rest"


def test_a_device_that_does_not_come_to_rest_costs_its_process_and_nothing_else(tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "plain", "plain", ranks=3)
    says = "the device of this process cannot be used any more (its queue does not come to rest)"
    struck = run(tmp_path / "struck", "late", "backward", "spoilt", ranks=3, says=says)
    comparison = compare(undisturbed, struck)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert {swap[0] for recovery in struck.recoveries for swap in recovery.swaps} == {0, 1}
    decisions = (struck.path / "ledger" / "decisions.jsonl").read_text()
    assert '"device_lost"' in decisions and "its device could not be used any more" in decisions
