"""Whole life stories of a job: events in, commands out."""

from collections.abc import Sequence
from dataclasses import replace

from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import (
    AbandonGeneration,
    AssignRank,
    Command,
    DecisionKind,
    KillMember,
    Outcome,
    RecordDecision,
    RecordGeneration,
    ReleaseMembers,
    ResumeAt,
    StartMember,
    StopJob,
    WatchClosely,
)
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.member_loss import exit_code_for
from understudy.protocol.policy import Policy
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.requests import AbortGeneration
from understudy.protocol.stages import Stage

KILLED = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9, step=StepNumber(5))
ENDED = Cause(kind=CauseKind.EXIT, detail="ended", exit_code=0)


def m(number: int) -> MemberId:
    return MemberId(f"m-{number}")


def lost(number: int, cause: Cause = KILLED, at: float = 10.0) -> ev.MemberLost:
    return ev.MemberLost(at=at, member=m(number), cause=cause)


def reported(number: int, generation: int, position: Position, at: float = 10.0) -> ev.PositionReported:
    return ev.PositionReported(
        at=at, member=m(number), generation=Generation(generation), position=position, twin_key="all"
    )


def prepared(number: int, generation: int) -> ev.MemberPrepared:
    return ev.MemberPrepared(at=11.0, member=m(number), generation=Generation(generation), twin_key="all")


def resumed(number: int, generation: int) -> ev.MemberResumed:
    return ev.MemberResumed(at=12.0, member=m(number), generation=Generation(generation))


def finished(number: int, generation: int) -> ev.MemberFinished:
    return ev.MemberFinished(at=20.0, member=m(number), generation=Generation(generation))


def holding(step: int | None, *, arrived: bool = False) -> Position:
    return Position(holds=None if step is None else StepNumber(step), arrived=arrived)


def started(world_size: int = 2, spares: int = 1, **limits: object) -> JobMachine:
    """Members m-0.. hold the ranks, the following ones are warm spares."""
    machine = JobMachine(replace(Policy(world_size=world_size, spares=spares), **limits))  # type: ignore[arg-type]
    machine.handle(ev.JobStarted(at=0.0))
    for number in range(world_size + spares):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    for number in range(world_size, world_size + spares):
        machine.handle(ev.MemberParked(at=1.5, member=m(number)))
    return machine


def training(world_size: int = 2, spares: int = 1, **limits: object) -> JobMachine:
    machine = started(world_size, spares, **limits)
    for number in range(world_size):
        event = ev.MemberEstablished(at=2.0, member=m(number), generation=Generation(1), twin_key="all")
        machine.handle(event)
    assert machine.stage is Stage.TRAINING
    return machine


def kinds(commands: tuple[Command, ...]) -> list[type[Command]]:
    return [type(command) for command in commands]


def stop_of(commands: tuple[Command, ...]) -> StopJob:
    (stop,) = [command for command in commands if isinstance(command, StopJob)]
    return stop


def test_a_job_begins_by_recording_its_first_generation() -> None:
    machine = JobMachine(Policy(world_size=2, spares=1))
    commands = machine.handle(ev.JobStarted(at=0.0))
    assert kinds(commands) == [RecordDecision, RecordGeneration, StartMember, StartMember, StartMember]
    (assign,) = machine.handle(ev.MemberConnected(at=1.0, member=m(0)))
    first = Generation(1)
    assert assign == AssignRank(
        member=m(0),
        rank=Rank(0),
        slot=0,
        store=THIS_HOST,
        generation=first,
        founded_in=first,
        founding=True,
        world_size=2,
        local_world_size=2,
    )


def test_a_swap_from_loss_to_resumed() -> None:
    machine = training()
    commands = machine.handle(lost(1))
    assert kinds(commands) == [RecordDecision, RecordGeneration, AbandonGeneration, AssignRank]
    assert commands[1] == RecordGeneration(
        generation=Generation(2), founded_in=Generation(1), holders=machine.round.record().holders
    )
    assert machine.handle(reported(0, 2, holding(5))) == ()
    verdict, plan = machine.handle(prepared(2, 2))
    assert isinstance(verdict, RecordDecision) and verdict.reason.code == Code.RETRY
    assert isinstance(plan, ResumeAt) and (plan.step, plan.donors) == (5, ((1, (0,)),))
    assert machine.handle(resumed(0, 2)) == ()
    record, decision = machine.handle(resumed(2, 2))
    assert isinstance(record, RecordGeneration) and record.generation == 2
    assert isinstance(decision, RecordDecision) and decision.kind is DecisionKind.RESUMED
    refill = machine.handle(ev.Tick(at=machine.next_deadline() or 0.0))
    assert kinds(refill) == [RecordGeneration, RecordDecision, StartMember]


def test_a_joiner_is_served_before_a_laggard_that_has_something_to_lose() -> None:
    machine = training(world_size=3)
    machine.handle(lost(1))
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(reported(2, 2, holding(6)))
    plan = machine.handle(prepared(3, 2))[-1]
    assert isinstance(plan, ResumeAt) and (plan.step, plan.donors) == (6, ((1, (2,)), (0, (2,))))


def test_a_second_loss_opens_the_next_generation_and_old_reports_count_for_nothing() -> None:
    machine = training(world_size=3, spares=2)
    machine.handle(lost(1))
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(lost(2))
    assert machine.generation == 3
    assert machine.handle(reported(0, 2, holding(5))) == ()
    assert m(0) in machine.round.state.awaited


def test_a_joiner_that_connects_late_is_told_the_generation_that_is_open_now() -> None:
    machine = training(world_size=3, spares=1)
    machine.handle(lost(1))
    machine.handle(lost(2))
    machine.handle(lost(3))  # the first joiner: rank 1 now waits for a process that has not said hello
    cold = next(id_ for id_, member in machine.roster.members.items() if not member.connected)
    assert machine.roster.members[cold].assigned_in == 3
    assign, news = machine.handle(ev.MemberConnected(at=12.0, member=cold))
    assert isinstance(assign, AssignRank) and assign.generation == 3
    assert isinstance(news, AbandonGeneration) and (news.generation, news.members) == (4, (cold,))


def test_a_known_commit_is_never_thrown_away_by_a_word_from_a_joiner() -> None:
    machine = training()
    machine.handle(lost(1))
    machine.handle(prepared(2, 2))
    machine.handle(reported(2, 2, Position(holds=None, established=False)))
    commands = machine.handle(reported(0, 2, holding(5)))
    assert kinds(commands) == [RecordDecision, ResumeAt]


def test_a_loss_before_the_first_commit_starts_over() -> None:
    machine = started()
    machine.handle(lost(1))
    commands = machine.handle(reported(0, 2, Position(holds=None, established=False)))
    assert KillMember(member=m(0), reason=because(Code.WORLD_STARTS_OVER)) in commands
    assert machine.stage is Stage.FOUNDING
    assert machine.round.state.founded_in == machine.generation == 3


def test_starting_over_has_a_limit() -> None:
    machine = started(max_start_overs=0)
    machine.handle(lost(1))
    stop = stop_of(machine.handle(reported(0, 2, Position(holds=None, established=False))))
    assert stop.reason.has(Code.START_OVERS_SPENT)


def test_a_verdict_proves_that_the_first_step_is_over() -> None:
    machine = started()  # the news of the first commit was lost
    machine.handle(lost(1))
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(prepared(2, 2))
    assert machine.stage is Stage.FORMING
    machine.handle(lost(0))
    stop = stop_of(machine.handle(reported(2, 3, holding(None))) or machine.handle(prepared(3, 3)))
    assert stop.reason.has(Code.NO_STATE_LEFT)


def test_whoever_does_not_report_is_asked_again_and_never_ended_without_evidence() -> None:
    machine = training()
    machine.handle(AbortGeneration(at=30.0, reason="an operator wants it"))
    machine.handle(reported(0, 2, holding(5), at=30.1))
    again = machine.handle(ev.Tick(at=32.0))
    assert [c.members for c in again if isinstance(c, AbandonGeneration)] == [(m(1),)]
    assert WatchClosely in kinds(again)
    for at in range(33, 600):
        assert KillMember not in kinds(machine.handle(ev.Tick(at=float(at))))


def test_forming_that_takes_too_long_opens_the_next_generation() -> None:
    machine = training()
    machine.handle(lost(1))
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(prepared(2, 2))
    assert ResumeAt in kinds(machine.handle(ev.Tick(at=20.0)))
    machine.handle(ev.Tick(at=200.0))
    assert (machine.stage, machine.generation) == (Stage.STOPPING, 3)


def test_a_recovery_that_fails_is_opened_again() -> None:
    machine = training()
    machine.handle(lost(1))
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(prepared(2, 2))
    failed = ev.RecoveryFailed(at=12.0, member=m(2), generation=Generation(2), why="digest differs")
    assert AbandonGeneration in kinds(machine.handle(failed))
    assert machine.handle(failed) == ()


def test_all_finished_are_released_and_whoever_missed_it_is_told_again() -> None:
    machine = training()
    assert machine.handle(finished(0, 1)) == ()
    decision, record, release = machine.handle(finished(1, 1))
    assert isinstance(record, RecordGeneration)
    assert isinstance(decision, RecordDecision) and isinstance(release, ReleaseMembers)
    assert machine.handle(finished(0, 1)) == (ReleaseMembers(generation=Generation(1), members=(m(0),)),)
    assert machine.next_deadline() is None
    machine.handle(lost(0, ENDED))
    stop = stop_of(machine.handle(lost(1, ENDED)))
    assert (stop.outcome, stop.exit_code) == (Outcome.SUCCEEDED, 0)
    assert machine.handle(lost(1, ENDED)) == ()


def test_after_the_release_no_deadline_can_open_a_generation() -> None:
    machine = training()
    machine.handle(lost(1))
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(prepared(2, 2))
    machine.handle(finished(0, 2))  # its word that it resumed was lost
    machine.handle(finished(2, 2))
    assert machine.released
    assert machine.handle(ev.Tick(at=1000.0)) == ()


def test_a_script_that_ends_in_the_middle_of_a_recovery_stops_the_job() -> None:
    machine = training(world_size=3)
    machine.handle(lost(1))
    stop = stop_of(machine.handle(lost(0, ENDED)))
    assert stop.reason.has(Code.SCRIPT_ENDED_IN_RECOVERY)


def test_a_generation_that_is_opened_after_one_script_has_ended_stops_the_job() -> None:
    machine = training()
    machine.handle(lost(0, ENDED))
    stop = stop_of(machine.handle(AbortGeneration(at=30.0, reason="an operator wants it")))
    assert stop.reason.has(Code.SCRIPT_HAD_ENDED)


def test_strangers_are_refused_with_a_reason() -> None:
    machine = training()
    (refusal,) = machine.handle(reported(77, 1, holding(3)))
    assert isinstance(refusal, RecordDecision) and refusal.kind is DecisionKind.REFUSE
    assert refusal.reason.code == Code.NOT_A_MEMBER and refusal.reason.get("member") == "m-77"
    assert machine.handle(lost(77)) == ()


def test_without_spares_the_stop_says_so_and_carries_the_signal() -> None:
    machine = training(spares=0)
    stop = stop_of(machine.handle(lost(1)))
    assert stop.reason.has(Code.NO_SPARES_OFFERED) and stop.exit_code == 137
    assert exit_code_for(replace(KILLED, exit_code=3)) == 3


def test_an_operator_may_stop_the_job() -> None:
    stop = stop_of(training().handle(ev.StopRequested(at=5.0, reason="enough", exit_code=130)))
    assert (stop.outcome, stop.reason, stop.exit_code) == (
        Outcome.STOPPED,
        because(Code.STOP_REQUESTED, text="enough"),
        130,
    )


def test_a_lost_spare_is_replaced_at_once_in_training() -> None:
    machine = training()
    assert kinds(machine.handle(lost(2))) == [RecordGeneration, RecordDecision, StartMember]


def test_a_copy_goes_its_own_way() -> None:
    machine = training()
    copy = machine.copy()
    copy.handle(lost(1))
    assert (machine.generation, copy.generation) == (1, 2)
    assert machine.stage is Stage.TRAINING and m(1) in machine.roster.members


# -- ranks without a twin ----------------------------------------------------------------------------------------------


def established(number: int, key: str, *units: int) -> ev.MemberEstablished:
    return ev.MemberEstablished(at=5.0, member=m(number), generation=Generation(1), twin_key=key, holdings=tuple(units))


def warnings(commands: Sequence[Command]) -> list[Reason]:
    kinds = [command for command in commands if isinstance(command, RecordDecision)]
    return [command.reason for command in kinds if command.kind is DecisionKind.WARN]


def test_ranks_whose_state_nobody_else_holds_are_named_at_the_start() -> None:
    machine = started(world_size=4)
    said = [
        *machine.handle(established(0, "a", 1, 2)),
        *machine.handle(established(1, "b", 3)),
        *machine.handle(established(2, "a", 1, 2)),
    ]
    assert warnings(said) == []
    (warning,) = warnings(machine.handle(established(3, "c", 4)))
    assert warning.code == Code.NO_TWIN and warning.get("ranks") == (1, 3)


def test_a_rank_whose_parts_are_held_by_several_others_is_not_alone() -> None:
    machine = started(world_size=3)
    machine.handle(established(0, "both", 1, 2))
    machine.handle(established(1, "left", 1))
    assert warnings(machine.handle(established(2, "right", 2))) == []
