"""A successor waits for its leaver before its own first step. The leaver may die meanwhile."""

from types import SimpleNamespace
from typing import Any

import pytest

from understudy.errors import StepAbandoned, TransferError
from understudy.foundation.ids import Generation
from understudy.training.recovery.state_transfer import StateTransfer
from understudy.training.status import MemberStatus


class DeadLeaver:
    """Waits as the store does: until a newer generation makes it pointless."""

    def __init__(self, status: MemberStatus, control: Any) -> None:
        self._status, self._control = status, control

    own_words = None

    def place_of(self, rank: int) -> int:
        return rank

    def bridge(self, _generation: Generation, *, leaver: bool) -> object:
        assert not leaver and not self._status.interrupted
        self._control.abandoned = Generation(3)  # the coordinator has heard of the death
        if self._status.interrupted:
            raise StepAbandoned("the leaver has gone")
        pytest.fail("it would wait for a dead process until the store gives up")


def test_a_successor_does_not_wait_for_a_dead_leaver() -> None:
    assignment = SimpleNamespace(founding=False, generation=2, founded_in=1)
    control: Any = SimpleNamespace(abandoned=Generation(2), leaving=False, taking=True, assignment=assignment)
    nothing: Any = SimpleNamespace()
    status = MemberStatus(control, nothing)
    transfer = StateTransfer(
        control=control,
        status=status,
        world=DeadLeaver(status, control),  # type: ignore[arg-type]
        protected=nothing,
        engines=nothing,
        replicas=nothing,
        rank_local_buffers=nothing,
        replication=nothing,
        ledger=nothing,
        host="",
    )
    transfer.meet_at_bridge()
    with pytest.raises(TransferError, match="the leaver has gone"):
        transfer.across_bridge()
    assert not status.interrupted, "what waits in setup goes on waiting"
