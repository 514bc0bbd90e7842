"""No spare at all: a rank dies, and the others finish the job on all samples."""

from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.ledger.exactly_once import prove
from understudy.ledger.reading import Run
from understudy_testkit.faults.assertions import Setup, perform, require_fired, require_success
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]


@pytest.mark.parametrize("place", [FaultPoint.COLLECTIVE, FaultPoint.IN_OPTIMIZER])
def test_a_world_without_spares_finishes_without_the_lost_rank(
    tmp_path: Path, place: FaultPoint, reference: Callable[[Setup], Run]
) -> None:
    setup = Setup(ranks=3, spares=0, steps=8)
    fault = Fault(name="k", kind=Kind.KILL, rank=1, place=place, step=3)
    outcome = require_success(perform(tmp_path, setup, [fault], timeout=240.0))
    require_fired(outcome, [fault])
    proof = prove(outcome.run, reference(setup))
    (recovery,) = outcome.run.recoveries
    assert proof.holds and proof.degraded == tuple(range(recovery.step, 8)), proof.sentence()
    assert recovery.step in (3, 4) and recovery.swaps == ()
    assert "without rank 1" in outcome.output
