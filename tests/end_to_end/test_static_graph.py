"""DDP with static_graph=True makes its buckets after its second step: a joiner has the same ones, and a loss before
that starts the job over."""

from pathlib import Path

import pytest

from understudy.protocol.commands import DecisionKind
from understudy_testkit.faults.assertions import Setup, perform, prove_identical, require_success
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind

SETUP = Setup(mode="ddp-static", ranks=2, spares=1, steps=8)


@pytest.mark.timeout(600)
def test_a_rank_is_replaced_with_the_same_buckets(tmp_path: Path) -> None:
    reference = require_success(perform(tmp_path / "reference", SETUP)).run
    for step, started_over in ((1, 1), (2, 0)):
        fault = Fault(name=f"in-{step}", kind=Kind.KILL, rank=1, place=FaultPoint.COLLECTIVE, step=step)
        outcome = prove_identical(tmp_path / str(step), SETUP, reference, [fault], 120.0)
        kinds = [decision.kind for decision in outcome.run.decisions]
        assert kinds.count(DecisionKind.START_OVER.value) == started_over
