"""A rank moves while it lives, because an operator asks; and somebody dies in the middle of that."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run, wait_until

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy.protocol.commands import DecisionKind
from understudy_testkit.faults import operator
from understudy_testkit.faults.assertions import Setup
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind, save_schedule
from understudy_testkit.faults.injector import fired
from understudy_testkit.faults.watching import decided_so_far

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
STEPS, GATE = 16, 5
WARM = "ranks 2/2 up, spares: 1 warm"


def run_and_move(folder: Path, mode: str, *faults: Fault) -> Run:
    """Two ranks wait before a step; meanwhile rank 1 is asked to move, and its spare prepares."""
    save_schedule(folder / "faults.json", faults)
    script = (str(SCRIPTS / "gated.py"), str(folder), str(GATE), "--mode", mode, "--steps", str(STEPS))
    scheduled = ("--faults", str(folder / "faults.json"), "--proofs", str(folder / "proofs"))
    flags = (*operator.api_flags(folder), "--step-timeout-min", "2.0")
    with understudy_run(folder, *script, *scheduled, flags=flags) as job:
        job.wait_for_output(WARM)
        wait_until(lambda: len(list(folder.glob(f"at-{GATE}-*"))) == 2, "both ranks at the gate")
        answer = operator.command("migrate", "--rank", "1", "--run", str(job.run_dir), "--reason", "the test wants it")
        assert "the test wants it" in answer
        planned = DecisionKind.MOVE.value
        wait_until(
            lambda: any(getattr(record, "kind", "") == planned for record in decided_so_far(job.run_dir)), "the move"
        )
        (folder / f"go-{GATE}").touch()
        assert job.wait() == 0, job.output
    assert len(fired(folder / "proofs")) == len(faults)
    return read_run(job.run_dir)


@pytest.mark.parametrize("mode", ["ddp", "hsdp"])
def test_a_rank_moves_at_a_boundary(tmp_path: Path, mode: str, reference: Callable[[Setup], Run]) -> None:
    run = run_and_move(tmp_path, mode)
    (move,) = run.recoveries
    assert move.planned and [(rank, new) for rank, _, new in move.swaps] == [(1, "m-2")]
    assert move.step > GATE and [transfer.given.keys() for transfer in move.transfers] == [{1}]
    comparison = compare(reference(Setup(mode=mode, ranks=2, steps=STEPS)), run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(name="leaver", kind=Kind.KILL, rank=1, place=FaultPoint.HAND_OVER),
        Fault(name="joiner", kind=Kind.KILL, rank=1, place=FaultPoint.TRANSFER, joiner=True),
        Fault(name="other", kind=Kind.KILL, rank=0, place=FaultPoint.REGROUP),
        Fault(name="before", kind=Kind.KILL, rank=1, place=FaultPoint.FORWARD, step=GATE),
    ],
    ids=lambda fault: fault.name,
)
def test_whoever_dies_in_a_move_is_replaced(tmp_path: Path, fault: Fault, reference: Callable[[Setup], Run]) -> None:
    run = run_and_move(tmp_path, "ddp", fault)
    (recovery,) = run.recoveries
    assert not recovery.planned
    comparison = compare(reference(Setup(mode="ddp", ranks=2, steps=STEPS)), run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
