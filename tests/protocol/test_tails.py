"""What survivors do after a step, and which joiners are needed there."""

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.planning import Plan, tail_of
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because

PLAN = Plan(step=StepNumber(8), donors=(), reason=because(Code.ALL_AT_FENCE, step=7))


def at(holds: int | None, **more: bool | int) -> Position:
    return Position(holds=None if holds is None else StepNumber(holds), **more)  # type: ignore[arg-type]


def world(*positions: Position) -> dict[Rank, Position]:
    return {Rank(number): position for number, position in enumerate(positions)}


def test_after_a_step_that_all_survivors_apply_joiners_are_needed_if_the_script_communicates_there() -> None:
    tail = tail_of(PLAN, world(at(7, arrived=True, has_tails=True), at(7, arrived=True, has_tails=True), at(None)))
    assert tail is not None and (tail.done, tail.donor, tail.lacking, tail.begun) == (0, 0, (), False)
    assert tail_of(PLAN, world(at(7, arrived=True), at(7, arrived=True), at(None))) is None


def test_a_survivor_that_is_there_already_tells_how_far_it_is() -> None:
    tail = tail_of(PLAN, world(at(8, in_tail=True, tail=2), at(8, in_tail=True, tail=1), at(None)))
    assert tail is not None and (tail.done, tail.donor, tail.lacking, tail.begun) == (2, 0, (1, 2), True)
    ahead = tail_of(PLAN, world(at(8, in_tail=True), at(7, arrived=True, has_tails=True), at(None)))
    assert ahead is not None and ahead.done == 0


def test_where_all_survivors_are_back_at_their_loops_there_is_none() -> None:
    assert tail_of(PLAN, world(at(8, has_tails=True, tail=2), at(8, has_tails=True, tail=2), at(None))) is None
    back = Plan(step=StepNumber(6), donors=(), reason=because(Code.REWIND, step=6), rewind=True)
    assert tail_of(back, world(at(8, in_tail=True), at(7, arrived=True, has_tails=True))) is None
