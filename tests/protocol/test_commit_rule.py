"""The commit rule, case by case and as properties."""

from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.commit import Action, action_for, judge
from understudy.protocol.positions import Position
from understudy.protocol.sentences import sentence


def at(holds: int | None, *, arrived: bool = False) -> Position:
    return Position(holds=None if holds is None else StepNumber(holds), arrived=arrived)


def world(*positions: Position) -> dict[Rank, Position]:
    return {Rank(number): position for number, position in enumerate(positions)}


def test_all_at_the_fence_commit() -> None:
    verdict = judge(world(at(7, arrived=True), at(7, arrived=True), at(None)))
    assert verdict is not None
    assert (verdict.step, verdict.committed) == (8, 7)


def test_one_before_the_fence_means_retry() -> None:
    verdict = judge(world(at(7, arrived=True), at(7)))
    assert verdict is not None
    assert (verdict.step, verdict.committed) == (7, None)
    assert "rank 1 had not arrived" in sentence(verdict.reason)


def test_what_one_survivor_has_applied_stays() -> None:
    verdict = judge(world(at(8), at(7, arrived=True), at(7)))
    assert verdict is not None
    assert (verdict.step, verdict.committed) == (8, 7)


def test_nobody_with_state_is_no_verdict() -> None:
    assert judge(world(at(None), at(None))) is None
    assert judge({}) is None


def test_many_ranks_are_not_all_named() -> None:
    verdict = judge(world(*(at(3) for _ in range(20))))
    assert verdict is not None and "and 12 more" in sentence(verdict.reason)


def test_actions() -> None:
    assert action_for(at(8), StepNumber(8)) is Action.HOLD
    assert action_for(at(8, arrived=True), StepNumber(8)) is Action.HOLD
    assert action_for(at(7, arrived=True), StepNumber(8)) is Action.APPLY
    assert action_for(at(7), StepNumber(8)) is Action.RECEIVE
    assert action_for(at(None), StepNumber(8)) is Action.RECEIVE


def test_positions_can_be_read() -> None:
    assert str(at(None)) == "without state"
    assert str(at(4, arrived=True)) == "at the fence of step 4"
    assert str(at(4)) == "before the fence of step 4"
    assert str(Position(holds=None, established=False)) == "still in its first step"


survivors = st.integers(0, 50).flatmap(
    lambda step: st.lists(
        st.one_of(
            st.builds(at, st.just(step), arrived=st.booleans()),
            st.just(at(step + 1)),
            st.just(at(None)),
        ),
        min_size=1,
        max_size=12,
    )
)


@settings(max_examples=50, deadline=None)
@given(survivors)
def test_a_verdict_never_goes_back_and_somebody_can_reach_it_alone(positions: list[Position]) -> None:
    verdict = judge(world(*positions))
    held = [position.holds for position in positions if position.holds is not None]
    if verdict is None:
        assert not held
        return
    assert verdict.reason
    assert verdict.step >= max(held)
    assert any(action_for(position, verdict.step) is not Action.RECEIVE for position in positions)


@settings(max_examples=50, deadline=None)
@given(survivors)
def test_the_order_of_ranks_does_not_matter(positions: list[Position]) -> None:
    one, other = judge(world(*positions)), judge(world(*reversed(positions)))
    assert (one and one.step) == (other and other.step)
