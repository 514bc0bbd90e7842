"""Whoever takes over a rank that moves waits for its leaver before its own first step. The leaver may die meanwhile."""

from types import SimpleNamespace

import pytest

from understudy.errors import StepAbandoned
from understudy.foundation.ids import Generation
from understudy.training.member import Member


class DeadLeaver:
    """Waits as the store does: until a newer generation makes it pointless."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def bridge(self, _generation: Generation, *, leaver: bool) -> object:
        assert not leaver and not self._member.interrupted
        self._member.control.abandoned = Generation(3)  # the coordinator has heard of the death
        if self._member.interrupted:
            raise StepAbandoned("nobody comes any more")
        pytest.fail("it would wait for a dead process until the store gives up")


def test_a_successor_does_not_wait_for_a_dead_leaver() -> None:
    member = Member.__new__(Member)
    member.in_steps, member._at_bridge, member.generation = False, False, Generation(2)
    member.control = SimpleNamespace(abandoned=Generation(2), leaving=False, taking=True)  # type: ignore[assignment]
    member.world = DeadLeaver(member)  # type: ignore[assignment]
    member._meet_at_bridge()
    assert "nobody comes any more" in member._bridge_trouble
    assert not member.interrupted, "what waits in setup goes on waiting"
