"""join(fence="device"): hosts go past the fence while their devices stand before it, and come back after a fault."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
SCRIPT = str(SCRIPTS / "running_ahead.py")
FLAGS = (
    "--ledger-digest-every",
    "10",
    "--ledger-digests",
    "word-sums",
)  # to take a digest the host waits for its device
PLACE = 5


def run(folder: Path, fence: str, *words: str, spares: int = 0, says: str = "", never: str = "\0") -> Run:
    folder.mkdir(exist_ok=True)
    with understudy_run(folder, SCRIPT, str(folder), fence, *words, spares=spares, flags=FLAGS) as job:
        assert job.wait() == 0, job.output
        assert says in job.output
        assert never not in job.output
    return read_run(job.run_dir)


def require_alike(plain: Run, other: Run) -> None:
    comparison = compare(plain, other)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()


def ahead(folder: Path) -> list[int]:
    return [int((folder / f"ahead.{rank}").read_text()) for rank in range(2)]


def test_hosts_end_a_step_while_their_devices_stand_before_its_fence(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "cpu")
    require_alike(plain, run(tmp_path / "ahead", "device", "ahead", never="is not followed"))
    assert min(ahead(tmp_path / "ahead")) > 20, "the whole step is still in the queue"


@pytest.mark.parametrize("words", [(), ("momentum",)], ids=["AdamW", "SGD with momentum"])
def test_a_host_that_was_past_the_fence_of_a_step_that_is_not_applied_goes_back(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Learning rates too: they had changed since."""
    plain = run(tmp_path / "plain", "cpu", *words)
    says = f"rank 0 was past the fence of step {PLACE}, which its device has not applied"
    struck = run(tmp_path / "struck", "device", "killed", *words, spares=1, says=says)
    require_alike(plain, struck)
    assert [swap[0] for recovery in struck.recoveries for swap in recovery.swaps] == [1]


def test_what_speaks_against_it_is_said_and_ranks_wait_as_ever(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "cpu", "foreach")
    says = 'join(fence="device") is not followed, ranks wait for each other at the fence: optimizer is not fused'
    require_alike(plain, run(tmp_path / "refused", "device", "foreach", says=says))
