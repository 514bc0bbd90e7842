"""On probation after a recovery: what counts as bad, and to what the world steps down."""

import msgspec
from tests.protocol.test_job_stories import KILLED
from tests.protocol.test_rung_budgets import plan_in, recover, report, stop_in, world_with

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import Command, DecisionKind, RecordDecision, ResumeAt
from understudy.protocol.job import JobMachine
from understudy.protocol.positions import Position
from understudy.protocol.probation import Probation, Source, StepDown
from understudy.protocol.reasons import Code
from understudy.protocol.requests import AbortGeneration
from understudy.protocol.rungs import Rung, RungLimits
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage
from understudy.protocol.state import State
from understudy.protocol.takeover import facts_of, take_over


def probation(rung: Rung, step: int, *stepped: Rung, agreed: bool = False) -> Probation:
    return Probation(rung=rung, step=StepNumber(step), until=StepNumber(step + 3), agreed=agreed, stepped=stepped)


def bad(machine: JobMachine, rank: int, step: int, certain: bool = True) -> list[Command]:
    event = ev.BadStateTold(
        at=20.0,
        member=machine.roster.holders[Rank(rank)],
        generation=machine.generation,
        step=StepNumber(step),
        why="its parameters are not finite",
        certain=certain,
    )
    return list(machine.handle(event))


def resume(machine: JobMachine, plan: ResumeAt, not_finite: tuple[int, ...] = ()) -> list[Command]:
    commands: list[Command] = []
    for rank, member in sorted(machine.roster.holders.items()):
        event = ev.MemberResumed(at=21.0, member=member, generation=plan.generation, finite=rank not in not_finite)
        commands += machine.handle(event)
    return commands


def test_what_may_be_used_after_what() -> None:
    swap = StepDown(bad=probation(Rung.SWAP, 8))
    assert not swap.allows(Source.LIVE, StepNumber(8)) and not swap.allows(Source.SAVED, StepNumber(9))
    assert all(swap.allows(source, StepNumber(8)) for source in (Source.AGREED, Source.SAVED, Source.DURABLE))
    memory = StepDown(bad=probation(Rung.PEER_MEMORY, 8))
    assert not memory.allows(Source.SAVED, StepNumber(8)) and memory.allows(Source.SAVED, StepNumber(7))
    assert memory.allows(Source.DURABLE, StepNumber(8))
    again = StepDown(bad=probation(Rung.PEER_MEMORY, 7, Rung.PEER_MEMORY))
    assert not again.allows(Source.SAVED, StepNumber(6)) and again.allows(Source.DURABLE, StepNumber(6))
    rewound = StepDown(bad=probation(Rung.SWAP, 8, agreed=True))
    assert not rewound.allows(Source.AGREED, StepNumber(8)) and rewound.allows(Source.SAVED, StepNumber(8))


def test_nothing_that_is_not_trusted_is_left_of_a_position() -> None:
    position = Position(
        holds=StepNumber(9),
        arrived=True,
        kept=StepNumber(9),
        saved=(StepNumber(7), StepNumber(8)),
        durable=(StepNumber(4), StepNumber(8)),
    )
    left = StepDown(bad=probation(Rung.PEER_MEMORY, 8)).left_of(position)
    assert (left.holds, left.arrived, left.kept) == (None, False, None)
    assert (left.saved, left.durable) == ((7,), (4, 8))


def test_a_sign_of_bad_state_takes_a_lower_rung_if_there_is_one_and_ends_nothing() -> None:
    for durable, expected in (((4,), (Rung.CHECKPOINT, 4)), ((), (Rung.SWAP, 9))):
        machine = world_with(RungLimits())
        plan = plan_in(recover(machine, 2))
        assert (plan.rung, plan.step) == (Rung.SWAP, 8)
        bad(machine, 2, 9, certain=False)
        plan = plan_in(report(machine, (), durable, holds=9))
        assert (plan.rung, plan.step) == expected
        assert (plan.reason.has(Code.NOTHING_BELOW)) == (not durable)


def test_from_peer_memory_to_an_older_copy_to_a_checkpoint_to_the_end() -> None:
    machine = world_with(RungLimits(), twins=False)
    plan = plan_in(recover(machine, 2, saved=(7, 8), durable=(4,)))
    assert (plan.rung, plan.step, plan.probation, plan.distrust) == (Rung.PEER_MEMORY, 8, 3, False)
    commands = bad(machine, 2, 9)
    assert machine.stage is Stage.STOPPING and machine.round.state.probation is None
    (noted,) = [c for c in commands if isinstance(c, RecordDecision) and c.kind is DecisionKind.STEP_DOWN]
    assert "bad state on probation (steps 8 to 10, after peer memory)" in sentence(noted.reason)
    plan = plan_in(report(machine, (7, 8), (4,), holds=9))
    assert (plan.rung, plan.step, plan.distrust, plan.probation) == (Rung.PEER_MEMORY, 7, True, 3)
    assert plan.reason.has(Code.NOT_TRUSTED) and "steps 7 to 8 run again" in sentence(plan.reason)
    resume(machine, plan)
    bad(machine, 0, 8)
    plan = plan_in(report(machine, (6, 7), (4,), holds=8))
    assert (plan.rung, plan.step) == (Rung.CHECKPOINT, 4)
    resume(machine, plan)
    bad(machine, 0, 5)
    stop = stop_in(report(machine, (), (4,), holds=5))
    assert "to which it had stepped down from peer memory, peer memory" in sentence(stop.reason)
    assert stop.reason.has(Code.NOTHING_OLDER_SAVED)
    assert stop.reason.has(Code.NO_OLDER_CHECKPOINT)


def test_a_member_that_holds_the_very_step_does_not_keep_it() -> None:
    """Two have not finished the step in which the others saw that the state is bad."""
    machine = world_with(RungLimits(swap=None), twins=True)
    plan = plan_in(recover(machine, 2, saved=(7, 8)))
    assert plan.rung is Rung.SWAP and plan.probation == 3
    bad(machine, 2, 9)
    plan = plan_in(report(machine, (7, 8), (), holds=8))
    assert (plan.rung, plan.step, plan.distrust, plan.donors) == (Rung.PEER_MEMORY, 8, True, ())


def test_outside_of_probation_it_is_nobodys_business() -> None:
    machine = world_with(RungLimits())
    assert bad(machine, 1, 6) == []
    recover(machine, 2)
    assert bad(machine, 1, 12) == [] and machine.stage is Stage.TRAINING
    assert bad(machine, 1, 8) == []


def test_a_run_that_was_not_finite_before_goes_on() -> None:
    machine = world_with(RungLimits())
    machine.handle(ev.MemberLost(at=10.0, member=machine.roster.holders[Rank(2)], cause=KILLED))
    plan = plan_in(report(machine, (), ()))
    commands = resume(machine, plan, not_finite=(1, 2))
    (note,) = [c for c in commands if isinstance(c, RecordDecision) and c.kind is DecisionKind.WARN]
    assert "ranks 1, 2 hold parameters that are not finite" in sentence(note.reason)
    assert bad(machine, 1, 9) == [] and machine.stage is Stage.TRAINING


def test_an_alarm_without_a_loss_begins_no_probation() -> None:
    machine = world_with(RungLimits())
    machine.handle(AbortGeneration(at=10.0, reason="an operator wants it"))
    plan = plan_in(report(machine, (), ()))
    assert plan.probation == 0
    resume(machine, plan)
    assert machine.round.state.probation is None


def test_twins_that_differ_on_probation_without_copies() -> None:
    machine = world_with(RungLimits())
    recover(machine, 2)
    commands: list[Command] = []
    for rank, member in sorted(machine.roster.holders.items()):
        digest = "one" if rank < 2 else "other"
        event = ev.DigestTold(
            at=15.0, member=member, generation=machine.generation, step=StepNumber(9), digest=digest, copied=False
        )
        commands += machine.handle(event)
    assert machine.round.state.kind.below is not None and machine.round.state.kind.below.must
    stop = stop_in(report(machine, (), (), holds=9))
    assert stop.reason.has(Code.UNDECIDABLE) and stop.reason.has(Code.NOTHING_OLDER_SAVED)


def test_the_next_coordinator_goes_on_with_it() -> None:
    machine = world_with(RungLimits(), twins=False)
    recover(machine, 2, saved=(7, 8))
    on_probation = facts_of(machine, 14.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(on_probation), type=State) == on_probation
    assert take_over(machine.policy, on_probation, at=1.0)[0].round.state.probation == machine.round.state.probation
    bad(machine, 2, 9)
    stepping = facts_of(machine, 22.0)
    assert take_over(machine.policy, stepping, at=1.0)[0].round.state.kind.below == machine.round.state.kind.below
