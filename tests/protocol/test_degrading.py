"""Stories of a world without spares: it goes on with fewer ranks, and they come back."""

from tests.protocol.cluster_play import of
from tests.protocol.test_job_stories import holding, lost, m, resumed, started

from understudy.foundation.ids import Generation, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import (
    AskStep,
    AssignRank,
    Command,
    DecisionKind,
    RecordDecision,
    RecordGeneration,
    ResumeAt,
    StartMember,
    StopJob,
)
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import KeepSpares
from understudy.protocol.rungs import RungLimits
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage


def training(ranks: int = 4, shards: int = 1, degrade: bool = True) -> JobMachine:
    """Every rank belongs to a replica of `shards` neighbours."""
    machine = started(ranks, 0, rungs=RungLimits(degrade=None if degrade else 0))
    for rank in range(ranks):
        first = rank - rank % shards
        machine.handle(
            ev.MemberEstablished(
                at=2.0,
                member=m(rank),
                generation=Generation(1),
                twin_key=str(rank % shards),
                replica=tuple(Rank(other) for other in range(first, first + shards)),
            )
        )
    machine.handle(ev.PaceLearnt(at=3.0, pace=0.1))
    return machine


def position(machine: JobMachine, number: int, step: int | None) -> ev.PositionReported:
    return ev.PositionReported(at=10.0, member=m(number), generation=machine.generation, position=holding(step))


def report(machine: JobMachine, step: int, *numbers: int) -> ResumeAt:
    """These members say that they hold `step`; the verdict follows."""
    said: tuple[Command, ...] = ()
    for number in numbers:
        said = machine.handle(position(machine, number, step))
    (plan,) = of(ResumeAt, said)
    return plan


def prepared(number: int, generation: int, twin_key: str = "0") -> ev.MemberPrepared:
    """`generation`: in which it was given its rank."""
    return ev.MemberPrepared(at=25.0, member=m(number), generation=Generation(generation), twin_key=twin_key)


def resume(machine: JobMachine, *numbers: int) -> tuple[Command, ...]:
    said: tuple[Command, ...] = ()
    for number in numbers:
        said = machine.handle(resumed(number, machine.generation))
    assert machine.stage is Stage.TRAINING
    return said


def tell_steps(machine: JobMachine, step: int, *numbers: int) -> tuple[Command, ...]:
    said: tuple[Command, ...] = ()
    for number in numbers:
        said = machine.handle(
            ev.StepTold(at=30.0, member=m(number), generation=machine.generation, step=StepNumber(step))
        )
    return said


def offer(machine: JobMachine, spares: int) -> list[StartMember]:
    asked = KeepSpares(at=20.0, host=THIS_HOST, spares=spares, reason="there is one")
    return of(StartMember, machine.handle(asked))


def warm(machine: JobMachine, number: int) -> tuple[Command, ...]:
    machine.handle(ev.MemberConnected(at=21.0, member=m(number)))
    return machine.handle(ev.MemberParked(at=22.0, member=m(number)))


def told(kind: DecisionKind, commands: tuple[Command, ...]) -> RecordDecision:
    (decision,) = [decision for decision in of(RecordDecision, commands) if decision.kind is kind]
    return decision


def degraded() -> JobMachine:
    """Without rank 1, at step 7."""
    machine = training()
    machine.handle(lost(1))
    report(machine, 7, 0, 2, 3)
    resume(machine, 0, 2, 3)
    return machine


def test_a_world_without_a_spare_goes_on_without_the_rank() -> None:
    machine = training()
    said = machine.handle(lost(1))
    decision = told(DecisionKind.DEGRADE, said)
    assert decision.generation == 2 and decision.reason.has(Code.NO_SPARES_OFFERED)
    assert "3 of 4 ranks at the same global batch, without rank 1" in sentence(decision.reason)
    (recorded,) = of(RecordGeneration, said)
    assert recorded.absent == (1,)
    plan = report(machine, 7, 0, 2, 3)
    assert (plan.step, plan.absent, plan.members, plan.donors) == (7, (1,), (m(0), m(2), m(3)), ())


def test_it_comes_back_at_a_boundary_when_a_spare_is_prepared() -> None:
    machine = degraded()
    assert [start.member for start in offer(machine, 1)] == [m(4)]
    (assign,) = of(AssignRank, warm(machine, 4))
    assert (assign.member, assign.rank) == (m(4), 1) and machine.stage is Stage.TRAINING
    (question,) = of(AskStep, machine.handle(prepared(4, 2)))
    assert question.members == (m(0), m(2), m(3))
    said = tell_steps(machine, 10, 0, 2, 3)
    decision = told(DecisionKind.MOVE, said)
    assert (
        "rank 1 comes back before step 12: the world is whole again" in sentence(decision.reason)
        and decision.step == 12
    )
    machine.handle(position(machine, 4, None))
    plan = report(machine, 12, 0, 2, 3)
    assert (plan.step, plan.absent) == (12, ()) and [receiver for receiver, _ in plan.donors] == [1]


def test_ranks_come_back_one_by_one_if_there_is_one_spare_at_a_time() -> None:
    machine = degraded()
    machine.handle(lost(3))
    assert report(machine, 9, 0, 2).absent == (1, 3)
    resume(machine, 0, 2)
    offer(machine, 1)
    warm(machine, 4)
    assert of(AskStep, machine.handle(prepared(4, 3)))
    decision = told(DecisionKind.MOVE, tell_steps(machine, 12, 0, 2))
    assert (
        decision.reason.has(Code.COMES_BACK) and because(Code.STILL_ABSENT, ranks=(Rank(3),)) in decision.reason.all()
    )
    machine.handle(position(machine, 4, None))
    assert report(machine, 14, 0, 2).absent == (3,)
    resume(machine, 0, 2, 4)
    (start,) = of(StartMember, machine.handle(ev.Tick(at=40.0)))
    (assign,) = of(AssignRank, warm(machine, 5))
    assert (start.member, assign.member, assign.rank) == (m(5), m(5), 3)


def test_a_replica_comes_back_as_a_whole() -> None:
    """Ranks 2 and 3 are one replica. Both are dead, and a host that keeps one spare has one at a time."""
    machine = training(shards=2)
    machine.handle(lost(3))
    assert report(machine, 7, 0, 1, 2).absent == (2, 3)
    resume(machine, 0, 1)
    machine.handle(lost(2))  # benched
    assert machine.stage is Stage.TRAINING
    offer(machine, 1)
    warm(machine, 4)
    assert not of(AskStep, machine.handle(prepared(4, 2))), "rank 3 is missing"
    (start,) = of(StartMember, machine.handle(ev.Tick(at=40.0)))
    assert start.member == m(5), "the first one took the place of the spare"
    warm(machine, 5)
    assert of(AskStep, machine.handle(prepared(5, 2, "1")))
    assert "ranks 2, 3 come back" in sentence(told(DecisionKind.MOVE, tell_steps(machine, 12, 0, 1)).reason)


def test_whoever_is_lost_while_a_spare_prepares_takes_nothing_along() -> None:
    machine = degraded()
    offer(machine, 1)
    warm(machine, 4)
    said = machine.handle(lost(2, at=23.0))
    assert told(DecisionKind.SWAP, said).reason.has(Code.COMES_BACK_TOO), "a process can be started for rank 2"
    assert [start.seat and start.seat.rank for start in of(StartMember, said)] == [2]


def test_a_rank_that_fails_again_and_again_stays_away_and_ends_nothing() -> None:
    machine = degraded()
    offer(machine, 1)
    error = Cause(kind=CauseKind.SCRIPT_ERROR, detail="boom", exit_code=1, step=StepNumber(0), fingerprint="boom")
    said: tuple[Command, ...] = ()
    for number in range(4, 8):
        warm(machine, number)
        said = machine.handle(lost(number, error, at=23.0 + number))
        if any(decision.kind is DecisionKind.NO_MOVE for decision in of(RecordDecision, said)):
            break
        machine.handle(ev.Tick(at=40.0 + number))
    assert told(DecisionKind.NO_MOVE, said).reason.has(Code.STAYS_ABSENT) and not of(StopJob, said)
    warm(machine, number + 1)
    said = machine.handle(lost(2, at=60.0))
    assert machine.round.state.absent == {1}, "rank 2 is replaced, and rank 1 not tried again"


def test_what_cannot_be_degraded_stops_with_all_reasons() -> None:
    (stop,) = of(StopJob, training(degrade=False).handle(lost(1)))
    assert stop.reason.has(Code.NO_STRATEGY) and because(Code.NOT_ALLOWED, strategy="degrade") in stop.reason.all()
    machine = training(ranks=2, shards=2)
    (stop,) = of(StopJob, machine.handle(lost(1)))
    assert stop.reason.has(Code.NO_WHOLE_REPLICA)


def test_who_sat_out_holds_too_old_a_shard_and_is_named_in_the_reason() -> None:
    """Ranks 2 and 3 are left out at step 7; at step 30 rank 0 is lost, and its twin, rank 2, still holds step 7."""
    machine = training(shards=2)
    machine.handle(lost(3))
    report(machine, 7, 0, 1, 2)
    resume(machine, 0, 1)
    offer(machine, 2)
    warm(machine, 4)
    warm(machine, 5)
    machine.handle(prepared(4, machine.generation, "1"))
    machine.handle(lost(0))
    for number, step in ((1, 30), (2, 7), (4, None)):
        machine.handle(position(machine, number, step))
    said = machine.handle(prepared(5, machine.generation))
    (stop,) = of(StopJob, said)
    assert "rank 0 (it has no twin), but rank 2 holds it as it was before step 7: older than" in sentence(stop.reason)
