"""Recoveries of a world whose ranks arrive asynchronously, as the machine sees them."""

from tests.protocol.test_job_stories import holding, lost, m, prepared, reported, resumed, training

from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import Command, DecisionKind, KeepAgreed, RecordDecision, ResumeAt
from understudy.protocol.commit import Action, action_for
from understudy.protocol.job import JobMachine
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code
from understudy.protocol.stages import Stage

AT_FENCE = Position(holds=StepNumber(5), arrived_asynchronously=True)


def resume_of(commands: tuple[Command, ...]) -> ResumeAt:
    (resume,) = [command for command in commands if isinstance(command, ResumeAt)]
    return resume


def told(step: int, member: MemberId, generation: int = 1, digest: str = "d") -> ev.DigestTold:
    return ev.DigestTold(at=5.0, member=member, generation=Generation(generation), step=StepNumber(step), digest=digest)


def after_the_loss_of_rank_0(machine: JobMachine, *survivors: Position) -> tuple[Command, ...]:
    machine.handle(lost(0))
    machine.handle(prepared(len(survivors) + 1, 2))
    commands: tuple[Command, ...] = ()
    for number, position in enumerate(survivors, start=1):
        commands = machine.handle(reported(number, 2, position))
    return commands


def test_a_step_that_only_a_lost_rank_has_passed_runs_again() -> None:
    machine = training(world_size=3)
    commands = after_the_loss_of_rank_0(machine, AT_FENCE, AT_FENCE)
    (verdict,) = [c for c in commands if isinstance(c, RecordDecision) and c.kind is DecisionKind.VERDICT]
    assert verdict.reason.has(Code.RETRY) and verdict.reason.has(Code.NO_RANK_PASSED_FENCE)
    resume = resume_of(commands)
    assert resume.step == 5 and not resume.rewind
    assert dict(resume.donors).keys() == {Rank(0)}
    assert all(action_for(AT_FENCE, resume.step) is Action.HOLD for _ in range(2))


def test_synchronous_survivors_apply_it_as_ever() -> None:
    machine = training(world_size=3)
    at_fence = holding(5, arrived=True)
    assert resume_of(after_the_loss_of_rank_0(machine, at_fence, at_fence)).step == 6


def test_one_survivor_that_has_passed_commits_the_step_for_all() -> None:
    machine = training(world_size=3)
    resume = resume_of(after_the_loss_of_rank_0(machine, AT_FENCE, holding(6)))
    assert resume.step == 6
    assert dict(resume.donors).keys() == {Rank(0)}, "rank 1 stands at the fence and applies the step itself"


def test_what_a_lost_rank_told_of_a_step_that_runs_again_agrees_with_nothing() -> None:
    """It compared its state after step 5 with nobody: that state is agreed on when all have told it, once more."""
    machine = training(world_size=2)
    assert machine.handle(told(6, m(0))) == ()
    after_the_loss_of_rank_0(machine, AT_FENCE)
    machine.handle(resumed(1, 2))
    machine.handle(resumed(2, 2))
    assert machine.stage is Stage.TRAINING
    assert machine.handle(told(6, m(1), generation=2)) == ()
    assert any(isinstance(command, KeepAgreed) for command in machine.handle(told(6, m(2), generation=2)))
