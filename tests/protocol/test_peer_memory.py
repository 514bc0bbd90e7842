"""Plans for ranks that have no twin: from what they saved, and all to the same state."""

from tests.protocol.cluster_play import m
from tests.protocol.test_job_stories import lost, training

from understudy.foundation.ids import Generation, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import Command, DecisionKind, RecordDecision, ResumeAt, StopJob
from understudy.protocol.planning import CheckpointsWanted, NoPlan, Plan, Situation, make_plan
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code
from understudy.protocol.rungs import Rung
from understudy.protocol.sentences import sentence


def at(holds: int | None, *saved: int, arrived: bool = False) -> Position:
    return Position(
        holds=None if holds is None else StepNumber(holds), arrived=arrived, saved=tuple(map(StepNumber, saved))
    )


def plan_of(*positions: Position, twins: tuple[str, ...] | None = None) -> Plan | CheckpointsWanted | NoPlan:
    keys = twins or tuple(f"shard {rank}" for rank in range(len(positions)))
    situation = Situation(
        positions={Rank(rank): position for rank, position in enumerate(positions)},
        leavers={},
        twin_keys={Rank(rank): key for rank, key in enumerate(keys)},
        holdings={key: frozenset({hash(key)}) for key in keys},
        donors_per_receiver=8,
    )
    return make_plan(situation)


def test_a_joiner_with_a_copy_of_the_present_state_makes_nobody_go_back() -> None:
    plan = plan_of(at(6, 5, 6), at(None, 5, 6), at(6, 5, 6))
    assert isinstance(plan, Plan)
    assert (plan.step, plan.donors, plan.rewind, plan.rung) == (6, (), False, Rung.PEER_MEMORY)
    assert "rank 1 has saved the state before step 6" in sentence(plan.reason) and plan.reason.has(Code.NO_LIVE_TWIN)


def test_all_go_back_when_the_copy_is_older() -> None:
    plan = plan_of(at(8, 5), at(8, 5, arrived=True), at(None, 5))
    assert isinstance(plan, Plan)
    assert (plan.step, plan.rewind, plan.rung) == (5, True, Rung.PEER_MEMORY)
    assert "steps 5 to 7 run again" in sentence(plan.reason)


def test_a_commit_without_the_dead_rank_is_undone() -> None:
    """Two have applied step 6, the third died at its fence: its newest copy is the state before it."""
    plan = plan_of(at(7, 5, 6), at(6, 5, 6, arrived=True), at(None, 5, 6))
    assert isinstance(plan, Plan) and (plan.step, plan.rewind) == (6, True)
    assert "step 6 runs again" in sentence(plan.reason)


def test_a_copy_that_not_all_have_is_passed_over() -> None:
    plan = plan_of(at(10, 5, 10), at(10, 5, 10), at(None, 5))
    assert isinstance(plan, Plan) and plan.step == 5


def test_nobody_is_left_and_all_was_saved() -> None:
    plan = plan_of(at(None, 4, 5), at(None, 4, 5))
    assert isinstance(plan, Plan) and (plan.step, plan.rewind, plan.rung) == (5, True, Rung.PEER_MEMORY)
    assert plan.reason.has(Code.NO_STATE_LEFT)


def test_a_twin_gives_what_was_not_saved() -> None:
    plan = plan_of(at(None, 4), at(None), at(None, 4), twins=("a", "a", "b"))
    assert isinstance(plan, Plan) and (plan.step, plan.donors) == (4, ((Rank(1), (Rank(0),)),))


def test_a_live_twin_is_better_than_any_copy() -> None:
    plan = plan_of(at(8, 5), at(None, 5), twins=("a", "a"))
    assert isinstance(plan, Plan) and (plan.step, plan.rung) == (8, Rung.SWAP)


def test_the_reason_says_what_is_missing() -> None:
    nothing = plan_of(at(8), at(None))
    assert isinstance(nothing, NoPlan)
    assert [[part.code for part in why.all()][1] for why in nothing.tried] == [
        Code.NO_LIVE_TWIN,
        Code.RANKS_FILLED,
        Code.NOTHING_SAVED,
        Code.SAME_STATE,
        Code.NO_CHECKPOINT,
    ]
    not_all = plan_of(at(8, 5), at(None))
    assert isinstance(not_all, NoPlan) and any(why.has(Code.NOT_SAVED_BY_ALL) for why in not_all.tried)


def test_the_machine_plans_with_what_a_joiner_found() -> None:
    machine = training(world_size=4)
    for rank in range(4):
        machine.round.state.twin_keys[Rank(rank)] = f"shard {rank}"
    machine.round.state.holdings = {f"shard {rank}": frozenset({rank}) for rank in range(4)}
    machine.handle(lost(2))
    commands: tuple[Command, ...] = ()
    for rank in (0, 1, 3):
        commands += machine.handle(
            ev.PositionReported(
                at=11.0, member=m(rank), generation=Generation(2), position=at(8, 5), twin_key=f"shard {rank}"
            )
        )
    commands += machine.handle(
        ev.MemberPrepared(
            at=12.0,
            member=m(4),
            generation=Generation(2),
            twin_key="shard 2",
            holdings=(2,),
            saved=(StepNumber(5),),
        )
    )
    (plan,) = [command for command in commands if isinstance(command, ResumeAt)]
    assert (plan.step, plan.rung, plan.rewind) == (5, Rung.PEER_MEMORY, False)
    kinds = [command.kind for command in commands if isinstance(command, RecordDecision)]
    assert DecisionKind.REWIND in kinds
    assert not [command for command in commands if isinstance(command, StopJob)]
