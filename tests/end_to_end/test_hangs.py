"""A rank that makes no progress is found by the silence of its page, killed, and replaced."""

from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.ledger.reading import Run
from understudy.protocol.commands import DecisionKind
from understudy_testkit.faults.assertions import Setup, prove_identical
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SETUP = Setup(ranks=2, steps=12)


@pytest.mark.parametrize(
    ("kind", "rank", "place"),
    [
        (Kind.SPIN, 0, FaultPoint.FORWARD),
        (Kind.HOLD_GIL, 1, FaultPoint.FORWARD),
        (Kind.STOP, 1, FaultPoint.COLLECTIVE),
    ],
    ids=["python-loop", "native-call", "sigstop"],
)
def test_a_rank_that_hangs_is_killed_and_replaced(
    tmp_path: Path, reference: Callable[[Setup], Run], kind: Kind, rank: int, place: FaultPoint
) -> None:
    fault = Fault(name="hang", kind=kind, rank=rank, place=place, step=6)
    outcome = prove_identical(tmp_path, SETUP, reference(SETUP), [fault], timeout=240.0)
    run = outcome.run
    kills = [decision for decision in run.decisions if decision.kind == DecisionKind.KILL.value]
    assert [decision.member for decision in kills] == [f"m-{rank}"]
    (recovery,) = run.recoveries
    assert [(swap[0], swap[1]) for swap in recovery.swaps] == [(rank, f"m-{rank}")]
    assert recovery.step == 6
