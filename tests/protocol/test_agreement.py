"""Twins that compare their states, and what follows when they differ."""

from tests.protocol.cluster_play import m, of
from tests.protocol.test_job_stories import lost, prepared, resumed, training

from understudy.foundation.ids import Generation, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    Command,
    DecisionKind,
    KeepAgreed,
    KillMember,
    RecordDecision,
    ResumeAt,
    StopJob,
)
from understudy.protocol.job import JobMachine
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code
from understudy.protocol.recovery_kind import ORDINARY
from understudy.protocol.replica_check import ReplicaCheckState, compare
from understudy.protocol.stages import Stage

ALL = {Rank(rank): "all" for rank in range(4)}
PAIRS = {Rank(rank): str(rank % 2) for rank in range(4)}


def told(*digests: str) -> dict[Rank, str]:
    return {Rank(rank): digest for rank, digest in enumerate(digests)}


def tell(machine: JobMachine, step: int, *digests: str, generation: int = 1) -> tuple[Command, ...]:
    commands: tuple[Command, ...] = ()
    for rank, digest in enumerate(digests):
        holder = machine.roster.holders[Rank(rank)]
        commands += machine.handle(
            ev.DigestTold(
                at=10.0, member=holder, generation=Generation(generation), step=StepNumber(step), digest=digest
            )
        )
    return commands


def report(machine: JobMachine, number: int, holds: int, kept: int | None, generation: int = 2) -> tuple[Command, ...]:
    position = Position(holds=StepNumber(holds), kept=None if kept is None else StepNumber(kept))
    event = ev.PositionReported(
        at=11.0, member=m(number), generation=Generation(generation), position=position, twin_key="all"
    )
    return machine.handle(event)


def test_the_odd_one_is_found_by_majority_and_of_two_nobody_is_blamed() -> None:
    step = StepNumber(8)
    assert compare(step, told("a", "a", "b", "a"), ALL).odd == (2,)
    assert compare(step, told("a", "x", "b", "x"), PAIRS).torn == (0, 2)
    assert compare(step, told("a", "x", "a", "x"), PAIRS).agreed
    assert compare(step, told("a", "b", "c", "d"), {}).agreed  # nobody has a twin


def test_nothing_is_said_before_all_have_told_and_all_twins_are_known() -> None:
    agreement = ReplicaCheckState()
    for rank in range(3):
        assert agreement.take(Rank(rank), StepNumber(4), "a", 4, ALL) is None
    assert agreement.take(Rank(3), StepNumber(4), "a", 4, {Rank(0): "all"}) is None
    finding = agreement.take(Rank(3), StepNumber(4), "a", 4, ALL)
    assert finding is not None and finding.agreed and agreement.agreed == 4


def test_the_odd_twin_is_ended_and_everybody_goes_back() -> None:
    machine = training(world_size=3, spares=1)
    (keep,) = of(KeepAgreed, tell(machine, 4, "a", "a", "a"))
    assert keep.step == 4
    commands = tell(machine, 8, "b", "c", "b")
    (kill,) = of(KillMember, commands)
    assert kill.member == m(1) and not kill.hang and kill.reason.has(Code.OUTLIERS)
    assert of(RecordDecision, commands)[0].kind is DecisionKind.CORRUPT
    machine.handle(lost(1))
    report(machine, 0, holds=9, kept=4)
    report(machine, 2, holds=8, kept=4)
    (plan,) = of(ResumeAt, machine.handle(prepared(3, 2)))
    assert (plan.step, plan.rewind, plan.donors) == (4, True, ((Rank(1), (Rank(0), Rank(2))),))
    for number in (0, 2, 3):
        machine.handle(resumed(number, 2))
    assert machine.stage is Stage.TRAINING and machine.round.state.kind == ORDINARY


def test_two_that_differ_compute_again_and_if_that_does_not_help_the_job_stops() -> None:
    machine = training(world_size=2, spares=1)
    tell(machine, 4, "a", "a")
    assert not of(KillMember, tell(machine, 8, "b", "c"))
    assert machine.stage is Stage.STOPPING
    report(machine, 0, holds=8, kept=4)
    (plan,) = of(ResumeAt, report(machine, 1, holds=8, kept=4))
    assert plan.rewind and plan.step == 4 and plan.donors == ()
    for number in (0, 1):
        machine.handle(resumed(number, 2))
    (stop,) = of(StopJob, tell(machine, 8, "b", "c", generation=2))
    assert stop.reason.has(Code.TWINS_STILL_DIFFER)


def test_without_a_copy_of_the_agreed_state_the_world_goes_on_with_what_most_hold() -> None:
    machine = training(world_size=3, spares=1)
    tell(machine, 4, "a", "a", "a")
    tell(machine, 8, "b", "c", "b")
    machine.handle(lost(1))
    report(machine, 0, holds=8, kept=None)
    report(machine, 2, holds=8, kept=None)
    (plan,) = of(ResumeAt, machine.handle(prepared(3, 2)))
    assert not plan.rewind and plan.step == 8


def test_nobody_is_released_while_somebody_is_being_ended() -> None:
    machine = training(world_size=3, spares=1)
    tell(machine, 8, "b", "c", "b")
    for number in range(3):
        machine.handle(ev.MemberFinished(at=12.0, member=m(number), generation=Generation(1)))
    assert not machine.released
