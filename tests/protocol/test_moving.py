"""Stories of ranks that move while they live, and of requests that are refused."""

from dataclasses import replace

import pytest
from tests.protocol.cluster_play import A, B, cluster, hear_all, m, of, report
from tests.protocol.test_job_stories import holding, lost, prepared, reported, resumed, training

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import (
    AbandonGeneration,
    AskStep,
    AssignRank,
    Command,
    DecisionKind,
    KillMember,
    RecordDecision,
    ResumeAt,
    StartMember,
)
from understudy.protocol.job import JobMachine
from understudy.protocol.liveness import Condition, Sighting
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import AbortGeneration, DrainHost, KeepSpares, MoveRanks, ReplaceRank, Request
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage
from understudy.protocol.takeover import facts_of, take_over

WHY = "maintenance at noon"
ASKED = because(Code.REQUESTED, text=WHY)


def move(*ranks: int, at: float = 5.0) -> MoveRanks:
    return MoveRanks(at=at, ranks=tuple(Rank(rank) for rank in ranks), reason=WHY)


def told(number: int, step: int, generation: int = 1) -> ev.StepTold:
    return ev.StepTold(at=7.0, member=m(number), generation=Generation(generation), step=StepNumber(step))


def at_boundary(machine: JobMachine, world_size: int = 2, newest: int = 10) -> tuple[Command, ...]:
    """The spare is prepared and all have told their step: the boundary is out."""
    machine.handle(ev.PaceLearnt(at=5.0, pace=0.1))
    machine.handle(prepared(world_size, 1))
    commands: tuple[Command, ...] = ()
    for number in range(world_size):
        commands = machine.handle(told(number, newest - number))
    return commands


def test_a_rank_moves_without_a_loss() -> None:
    machine = training()
    asked = machine.handle(move(1))
    (assign,) = of(AssignRank, asked)
    assert (assign.member, assign.rank, assign.founding) == (m(2), 1, False)
    assert machine.stage is Stage.TRAINING and machine.roster.holders[Rank(1)] == m(1)
    (question,) = machine.handle(prepared(2, 1))
    assert question == AskStep(generation=Generation(1), members=(m(0), m(1)))
    machine.handle(ev.PaceLearnt(at=6.0, pace=0.1))
    assert machine.handle(told(0, 10)) == ()
    bound, free = of(AbandonGeneration, machine.handle(told(1, 9)))
    assert (bound.members, bound.boundary) == ((m(0), m(1)), 12)
    assert (free.members, free.boundary) == ((m(2),), None)
    assert {(one.leavers, one.takers) for one in (bound, free)} == {((m(1),), (m(2),))}
    for number, position in ((2, holding(None)), (0, holding(12))):
        assert machine.handle(reported(number, 2, position)) == ()
    (plan,) = of(ResumeAt, machine.handle(reported(1, 2, holding(12))))
    assert (plan.step, plan.members, plan.leavers) == (12, (m(0), m(2)), (m(1),))
    assert plan.donors == ((Rank(1), (Rank(1),)),)
    machine.handle(resumed(0, 2))
    (end,) = of(KillMember, machine.handle(resumed(2, 2)))
    assert end.member == m(1) and not end.hang
    dismissed = Cause(kind=CauseKind.DISMISSED, detail=sentence(end.reason), exit_code=-9)
    assert machine.handle(lost(1, dismissed, at=13.0)) == ()
    assert machine.stage is Stage.TRAINING and machine.roster.holders == {0: m(0), 1: m(2)}
    assert of(StartMember, machine.handle(ev.Tick(at=14.0)))  # the pool is filled again


def test_a_leaver_that_dies_while_its_understudy_prepares_is_an_ordinary_loss() -> None:
    machine = training()
    machine.handle(move(1))
    commands = machine.handle(lost(1))
    assert machine.stage is Stage.STOPPING and machine.roster.holders[Rank(1)] == m(2)
    assert not of(AssignRank, commands) and not of(StartMember, commands)
    machine.handle(reported(0, 2, holding(5)))
    (plan,) = of(ResumeAt, machine.handle(prepared(2, 1)))
    assert plan.donors == ((Rank(1), (Rank(0),)),) and plan.leavers == ()


@pytest.mark.parametrize("verdict_is_out", [False, True])
def test_a_leaver_that_dies_at_the_boundary_is_an_ordinary_loss(verdict_is_out: bool) -> None:
    machine = training()
    machine.handle(move(1))
    at_boundary(machine)
    if verdict_is_out:
        for number, position in ((0, holding(12)), (1, holding(12)), (2, holding(None))):
            machine.handle(reported(number, 2, position))
        assert machine.stage is Stage.FORMING
    (abandon,) = of(AbandonGeneration, machine.handle(lost(1)))
    assert (abandon.generation, abandon.boundary, abandon.members) == (3, None, (m(0), m(2)))
    assert (abandon.leavers, abandon.takers) == ((), ())
    machine.handle(reported(0, 3, holding(12)))
    (plan,) = of(ResumeAt, machine.handle(reported(2, 3, holding(None))))
    assert plan.donors == ((Rank(1), (Rank(0),)),) and plan.leavers == ()


def test_a_leaver_that_hangs_while_it_hands_its_rank_over_is_ended() -> None:
    """No spare is needed for that: its successor is there, and takes the state from another one."""
    machine = training()
    machine.handle(move(1))
    at_boundary(machine)
    for number, position in ((0, holding(12)), (1, holding(12)), (2, holding(None))):
        machine.handle(reported(number, 2, position))
    assert machine.stage is Stage.FORMING and not machine.roster.parked
    ended: list[KillMember] = []
    for at in (12.0, 13.0, 14.0, 15.0):
        sightings = (
            Sighting(member=m(0), condition=Condition.WAITING, seconds=at - 10.0, recovering=True),
            Sighting(member=m(1), condition=Condition.STOPPED, seconds=at - 10.0),
            Sighting(member=m(2), condition=Condition.WAITING, seconds=at - 10.0, recovering=True),
        )
        ended += of(KillMember, machine.handle(ev.ActivityObserved(at=at, sightings=sightings)))
        ended += of(KillMember, machine.handle(ev.Tick(at=at + 0.5)))
    assert {kill.member for kill in ended} == {m(1)}
    machine.handle(lost(1, at=16.0))
    machine.handle(reported(0, 3, holding(12)))
    (plan,) = of(ResumeAt, machine.handle(reported(2, 3, holding(None))))
    assert plan.donors == ((Rank(1), (Rank(0),)),) and plan.leavers == ()


def test_a_boundary_that_is_not_reached_in_time_is_given_up() -> None:
    machine = training(stall_floor=1.0, stall_factor=2.0)
    machine.handle(move(1))
    at_boundary(machine)
    deadline = machine.round.state.deadline
    assert deadline is not None
    (abandon,) = of(AbandonGeneration, machine.handle(ev.Tick(at=deadline)))
    assert (abandon.generation, abandon.boundary) == (3, None)
    assert set(abandon.members) == {m(0), m(1), m(2)}  # the leaver is still needed


def test_an_understudy_that_dies_ends_the_plan_and_nothing_else() -> None:
    machine = training()
    machine.handle(move(1))
    (decision,) = of(RecordDecision, machine.handle(lost(2)))
    assert decision.kind is DecisionKind.NO_MOVE and ASKED in decision.reason.all()
    assert machine.stage is Stage.TRAINING and machine.migration.state.reasons == {}


def test_a_move_waits_for_a_warm_spare_and_for_a_recovery() -> None:
    machine = training(world_size=2, spares=1)
    machine.handle(move(0, 1))
    assert set(machine.roster.understudies) == {0}  # there is only one spare
    machine.handle(lost(1))
    assert machine.stage is Stage.STOPPING
    machine.handle(reported(0, 2, holding(5)))
    machine.handle(ev.MemberConnected(at=11.0, member=m(3)))
    machine.handle(prepared(3, 2))
    machine.handle(resumed(0, 2))
    machine.handle(prepared(2, 1))  # what it says in the middle of that recovery counts later
    asked = machine.handle(resumed(3, 2))
    assert of(AskStep, asked) == [AskStep(generation=Generation(2), members=(m(0), m(3)))]
    assert set(machine.migration.state.reasons) == {0, 1} - {1}  # rank 1 has a new holder already


def test_a_whole_host_is_drained_at_once() -> None:
    machine = cluster()
    machine.handle(DrainHost(at=5.0, host=A, reason=WHY))
    assert machine.roster.understudies == {0: m(4), 1: m(5)}
    for number in (4, 5):
        commands = machine.handle(
            ev.MemberPrepared(at=6.0, member=m(number), generation=Generation(1), twin_key="all", holdings=(1,))
        )
    assert of(AskStep, commands)
    for number in range(4):
        commands = machine.handle(told(number, 4))
    assert [set(order.members) for order in of(AbandonGeneration, commands)] == [{m(n) for n in range(4)}, {m(4), m(5)}]
    report(machine, 2, 0, 1, 2, 3)
    for number in (4, 5):
        commands = machine.handle(
            ev.PositionReported(
                at=8.0, member=m(number), generation=Generation(2), position=Position(holds=None), twin_key="all"
            )
        )
    (plan,) = of(ResumeAt, commands)
    assert plan.leavers == (m(0), m(1)) and plan.store != A  # nothing stays on the host
    assert machine.refusal(DrainHost(at=9.0, host=A, reason=WHY)) == because(Code.ALREADY_DRAINED, host=A)


def test_whoever_takes_over_begins_the_move_anew() -> None:
    machine = cluster()
    machine.handle(DrainHost(at=5.0, host=A, reason=WHY))
    successor, commands = take_over(machine.policy, facts_of(machine, 6.0), 6.0)
    assert commands == () and set(successor.migration.state.reasons) == {0, 1}
    assert successor.hosts.by_id[A].draining and m(4) not in successor.roster.members
    hear_all(successor)
    assert m(4) not in successor.roster.members  # it was dismissed as a stranger


def test_replacing_and_aborting() -> None:
    machine = training()
    (_, kill) = machine.handle(ReplaceRank(at=5.0, rank=Rank(1), member=m(1), reason="an alert"))
    assert kill == KillMember(member=m(1), reason=because(Code.REQUESTED, text="an alert"), hang=True)
    machine = training()
    (abandon,) = of(AbandonGeneration, machine.handle(AbortGeneration(at=5.0, reason="an alert")))
    assert abandon.generation == 2 and abandon.boundary is None


def test_spares_are_added_and_dismissed() -> None:
    machine = training()
    this = HostId("this host")
    assert len(of(StartMember, machine.handle(KeepSpares(at=5.0, host=this, spares=3, reason=WHY)))) == 2
    ended = of(KillMember, machine.handle(KeepSpares(at=6.0, host=this, spares=0, reason=WHY)))
    assert {command.member for command in ended} == {m(2), m(3), m(4)}


REFUSED: list[tuple[Request, Code]] = [
    (move(7), Code.NO_SUCH_RANK),
    (MoveRanks(at=5.0, ranks=(), reason=WHY), Code.NO_SUCH_RANK),
    (ReplaceRank(at=5.0, rank=Rank(1), member=MemberId("m-9"), reason=WHY), Code.OTHER_HOLDER),
    (DrainHost(at=5.0, host=HostId("nowhere"), reason=WHY), Code.NO_SUCH_HOST),
    (DrainHost(at=5.0, host=HostId("this host"), reason=WHY), Code.NO_ROOM_ELSEWHERE),
    (KeepSpares(at=5.0, host=HostId("this host"), spares=10_000, reason=WHY), Code.TOO_MANY_SPARES),
]


@pytest.mark.parametrize(("request_", "code"), REFUSED)
def test_what_cannot_be_is_refused_with_a_reason(request_: Request, code: Code) -> None:
    machine = training()
    refusal = machine.refusal(request_)
    assert refusal is not None and refusal.code == code
    (decision,) = of(RecordDecision, machine.handle(request_))
    assert decision.kind is DecisionKind.REFUSE
    assert decision.reason == because(Code.REFUSED, why=refusal, wanted=ASKED)


def test_nothing_is_ended_that_nobody_could_make_good() -> None:
    machine = training()
    machine.round.state.twin_keys = {Rank(0): "a", Rank(1): "b"}
    assert machine.refusal(ReplaceRank(at=5.0, rank=Rank(1), reason=WHY)) == because(Code.WOULD_END_THE_JOB, rank=1)
    assert machine.refusal(move(1)) is None  # its holder gives its state itself


def test_too_few_healthy_ranks_are_left_alone() -> None:
    machine = cluster(min_healthy=4)
    replace_one = ReplaceRank(at=5.0, rank=Rank(1), reason=WHY)
    assert machine.refusal(replace_one) == because(Code.TOO_FEW_HEALTHY, count=4, world=4)
    machine = JobMachine(replace(machine.policy, min_healthy=3), machine.state)
    assert machine.refusal(ReplaceRank(at=5.0, rank=Rank(1), reason=WHY)) is None
    machine.handle(ev.HostSilent(at=5.0, host=B, why="cut"))
    assert machine.refusal(replace_one) == because(Code.TOO_FEW_HEALTHY, count=2, world=4)


def test_nothing_is_asked_of_a_job_at_its_end_or_at_its_beginning() -> None:
    machine = training(spares=1)
    machine.ending.released = True
    assert machine.refusal(move(1)) == because(Code.JOB_AT_END)
    machine.ending.released, machine.round.state.established = False, False
    assert machine.refusal(move(1)) == because(Code.NO_FIRST_STEP)


def test_a_leaver_in_trouble_disturbs_nobody_once_its_successor_has_everything() -> None:
    machine = training()
    machine.handle(move(1))
    at_boundary(machine)
    for number, position in ((0, holding(12)), (1, holding(12)), (2, holding(None))):
        machine.handle(reported(number, 2, position))
    machine.handle(resumed(2, 2))
    trouble = ev.RecoveryFailed(at=12.5, member=m(1), generation=Generation(2), why="the connection was closed")
    assert machine.handle(trouble) == () and machine.stage is Stage.FORMING
    assert of(KillMember, machine.handle(resumed(0, 2)))


@pytest.mark.parametrize("before", [True, False], ids=["before the boundary is chosen", "after it"])
def test_a_member_that_loses_contact_never_comes_to_the_boundary_and_is_not_waited_for(before: bool) -> None:
    """No loss is known: its device has failed, and its process lives on. The move goes on with the next generation."""
    machine = training()
    machine.handle(move(1))
    contact = ev.ContactLost(at=7.0, member=m(0), generation=Generation(1), why="its device has aborted a collective")
    if before:
        machine.handle(contact)
    at_boundary(machine)
    assert (machine.stage, machine.generation) == (Stage.STOPPING, 2)
    if not before:
        machine.handle(contact)
    machine.handle(ev.Tick(at=8.9))
    assert machine.generation == 2, "the news of a loss may still be on its way"
    commands = machine.handle(ev.Tick(at=9.0))
    assert machine.generation == 3
    newest = [order for order in of(AbandonGeneration, commands) if order.generation == 3]
    assert newest and all(order.boundary is None for order in newest), "at once"
    (why,) = (decision.reason for decision in of(RecordDecision, commands) if decision.kind is DecisionKind.ALARM)
    assert why.code is Code.NO_LOSS_KNOWN


def test_a_member_that_lost_contact_and_came_to_the_boundary_after_all_disturbs_nobody() -> None:
    machine = training()
    machine.handle(move(1))
    at_boundary(machine)
    machine.handle(ev.ContactLost(at=7.0, member=m(0), generation=Generation(1), why="reset by peer"))
    for number, position in ((2, holding(None)), (0, holding(12)), (1, holding(12))):
        machine.handle(reported(number, 2, position))
    assert machine.stage is Stage.FORMING
    machine.handle(ev.Tick(at=9.5))
    assert (machine.stage, machine.generation) == (Stage.FORMING, 2)
