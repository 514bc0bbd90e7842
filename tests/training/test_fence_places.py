"""At which places of a step ranks meet, and what a rank that waits there says of itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from understudy.errors import StepAbandoned
from understudy.groups.fence import BEFORE_CHANGE, KEPT
from understudy.protocol.positions import Position
from understudy.training.running_ahead import NeverAhead
from understudy.training.steps import ProtectedStep


class Fenced:
    """A member in step 7 whose contact is lost at a place of the fence."""

    def __init__(self, keep_own: bool, lost_at: int | None = None, asynchronous: bool = False) -> None:
        self.met: list[int] = []
        self.told: list[Position] = []
        self._lost_at = lost_at
        fence = SimpleNamespace(meet=self._meet)
        member: Any = SimpleNamespace(
            asynchronous=asynchronous,
            ahead=NeverAhead(),
            replicas=SimpleNamespace(keep_own=keep_own, fenced=True),
            fences=SimpleNamespace(of=lambda _generation: fence),
            status=SimpleNamespace(generation=1, show_compute=lambda *_: None),
            contact=SimpleNamespace(lost=lambda: False, await_word=lambda _why: None),
            peer_memory=SimpleNamespace(finish=lambda: None),
            tail=SimpleNamespace(expected=False),
            recovery=SimpleNamespace(await_verdict=self._verdict),
            body=SimpleNamespace(
                arrive=lambda _step: None,
                late_fence=SimpleNamespace(undo=None),
                engines=SimpleNamespace(waits=SimpleNamespace(seconds=0.0)),
            ),
        )
        self.step = ProtectedStep(member, 7, 0, lambda _: None, lambda _: None)

    def _meet(self, _step: int, _lost: Any, place: int) -> None:
        self.met.append(place)
        if place == self._lost_at:
            raise RuntimeError("contact was lost")

    def _verdict(self, position: Position) -> Any:
        self.told.append(position)
        return SimpleNamespace(step=8 if position.at_fence else 7, generation=2)


def test_ranks_meet_once_where_a_twin_has_all_of_a_rank() -> None:
    fenced = Fenced(keep_own=False)
    fenced.step.before_optimizer()
    assert fenced.met == [BEFORE_CHANGE]
    lost = Fenced(keep_own=False, lost_at=BEFORE_CHANGE)
    lost.step.before_optimizer()
    assert lost.told[0].arrived


def test_an_arrival_on_a_device_that_runs_behind_is_told_as_such() -> None:
    """A lost rank may have aborted first; then the gradients of a survivor may be garbage."""
    lost = Fenced(keep_own=False, lost_at=BEFORE_CHANGE, asynchronous=True)
    lost.step.before_optimizer()
    assert not lost.told[0].arrived and lost.told[0].arrived_asynchronously


def test_where_ranks_keep_what_no_twin_has_only_a_rank_that_knows_that_all_have_kept_it_has_arrived() -> None:
    fenced = Fenced(keep_own=True)
    fenced.step.before_optimizer()
    assert fenced.met == [KEPT, BEFORE_CHANGE]
    lost = Fenced(keep_own=True, lost_at=KEPT)
    with pytest.raises(StepAbandoned):
        lost.step.before_optimizer()
    assert lost.met == [KEPT] and not lost.told[0].arrived
    later = Fenced(keep_own=True, lost_at=BEFORE_CHANGE)
    later.step.before_optimizer()
    assert later.told[0].arrived
