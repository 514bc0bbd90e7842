"""The commit rule, case by case and as properties."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.commit import Action, action_for, judge
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code
from understudy.protocol.sentences import sentence


def at(holds: int | None, *, arrived: bool = False) -> Position:
    return Position(holds=None if holds is None else StepNumber(holds), arrived=arrived)


def on_device(holds: int, *, arrived: bool = True) -> Position:
    return Position(holds=StepNumber(holds), arrived_asynchronously=arrived)


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


def test_asynchronous_arrivals_do_not_commit_a_step() -> None:
    """A lost rank may have aborted first, and left them garbage."""
    verdict = judge(world(on_device(7), on_device(7), at(None)))
    assert verdict is not None
    assert (verdict.step, verdict.committed) == (7, None)
    assert verdict.reason.code is Code.NO_RANK_PASSED_FENCE
    assert "the gradients of ranks 0, 1 come from devices" in sentence(verdict.reason)


def test_a_rank_that_has_passed_proves_that_the_gradients_of_the_others_are_final() -> None:
    verdict = judge(world(Position(holds=StepNumber(8)), on_device(7), on_device(7, arrived=False)))
    assert verdict is not None
    assert (verdict.step, verdict.committed) == (8, 7)
    assert action_for(on_device(7), verdict.step) is Action.APPLY
    assert action_for(on_device(7, arrived=False), verdict.step) is Action.RECEIVE


def test_one_asynchronous_rank_makes_its_rule_that_of_all() -> None:
    verdict = judge(world(at(7, arrived=True), on_device(7), at(7, arrived=True)))
    assert verdict is not None and verdict.committed is None
    assert verdict.reason.code is Code.NO_RANK_PASSED_FENCE
    assert verdict.reason.fields == (("ranks", (1,)), ("step", 7))


def test_a_rank_before_the_fence_is_named_before_those_that_arrived_asynchronously() -> None:
    verdict = judge(world(on_device(7), on_device(7, arrived=False)))
    assert verdict is not None and verdict.committed is None
    assert verdict.reason.code is Code.NOT_ALL_AT_FENCE
    assert "rank 1 had not arrived" in sentence(verdict.reason)


def test_positions_can_be_read() -> None:
    assert str(on_device(4)) == "at the fence of step 4"
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
def test_on_devices_a_step_is_committed_exactly_if_some_rank_holds_the_next_one(positions: list[Position]) -> None:
    asynchronous = [replace(p, arrived=False, arrived_asynchronously=p.arrived) for p in positions]
    held = {position.holds for position in positions if position.holds is not None}
    verdict = judge(world(*asynchronous))
    if verdict is None:
        assert not held
        return
    assert (verdict.committed is not None) == (len(held) > 1)
    assert verdict.step == max(held)


@settings(max_examples=50, deadline=None)
@given(survivors)
def test_the_order_of_ranks_does_not_matter(positions: list[Position]) -> None:
    one, other = judge(world(*positions)), judge(world(*reversed(positions)))
    assert (one and one.step) == (other and other.step)
