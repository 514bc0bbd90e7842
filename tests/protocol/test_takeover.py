"""A coordinator goes on from what another one has recorded."""

import msgspec
from tests.protocol.cluster_play import KILLED, SPARE, A, B, cluster, hear_all, m, of, report, silence

from understudy.foundation.ids import Generation, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import (
    AbandonGeneration,
    AssignRank,
    KillMember,
    Outcome,
    RecordGeneration,
    ReleaseMembers,
    ResumeAt,
    StopJob,
)
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code
from understudy.protocol.roster import Standing
from understudy.protocol.stages import Stage
from understudy.protocol.state import State
from understudy.protocol.takeover import facts_of, take_over


def test_a_coordinator_that_takes_over_while_all_is_well_disturbs_nobody() -> None:
    old = cluster()
    machine, commands = take_over(old.policy, facts_of(old, 100.0), at=7.0)
    assert commands == () and machine.stage is Stage.TRAINING and machine.generation == 1
    for host, members in ((A, (m(0), m(1))), (B, (m(2), m(3))), (SPARE, (m(4), m(5)))):
        assert machine.handle(ev.HostHeard(at=8.0, host=host, members=members)) == ()
    for number in (4, 5):
        machine.handle(ev.MemberParked(at=8.1, member=m(number)))
    commands = machine.handle(ev.MemberLost(at=9.0, member=m(1), cause=KILLED))
    assert [c.member for c in commands if isinstance(c, AssignRank)] == [m(4)]


def test_a_recovery_that_was_under_way_is_opened_again() -> None:
    old = cluster()
    old.handle(ev.MemberLost(at=10.0, member=m(1), cause=KILLED))
    machine, commands = take_over(old.policy, facts_of(old, 10.0), at=3.0)
    (recorded,) = of(RecordGeneration, commands)
    assert recorded.generation == 3
    said = machine.handle(ev.HostHeard(at=4.0, host=A, members=(m(0),)))
    assert [c.members for c in said if isinstance(c, AbandonGeneration)] == [(m(0),)]
    machine.handle(ev.HostHeard(at=4.0, host=B, members=(m(2), m(3))))
    machine.handle(ev.HostHeard(at=4.0, host=SPARE, members=(m(4), m(5))))
    machine.handle(ev.MemberPrepared(at=5.0, member=m(4), generation=Generation(2), twin_key="all"))
    commands = report(machine, 3, 0, 2, 3)
    (plan,) = of(ResumeAt, commands)
    assert plan.step == 5 and dict(plan.donors)[Rank(1)]


def test_a_process_that_died_while_nobody_led_is_replaced() -> None:
    old = cluster()
    machine, _ = take_over(old.policy, facts_of(old, 10.0), at=3.0)
    machine.handle(ev.HostHeard(at=4.0, host=SPARE, members=(m(4), m(5))))
    commands = machine.handle(ev.MemberLost(at=4.1, member=m(3), cause=KILLED))
    assert [c.member for c in commands if isinstance(c, AssignRank)] == [m(4)]


def test_a_host_that_does_not_find_the_new_coordinator_is_lost() -> None:
    old = cluster()
    machine, _ = take_over(old.policy, facts_of(old, 10.0), at=0.0)
    for host, members in ((A, (m(0), m(1))), (SPARE, (m(4), m(5)))):
        machine.handle(ev.HostHeard(at=1.0, host=host, members=members))
    patience = old.policy.takeover_patience
    assert machine.next_deadline() == patience
    machine.handle(ev.Tick(at=patience + 0.1))
    assert machine.generation == 2 and not machine.hosts.by_id[B].present


def test_facts_survive_being_written() -> None:
    old = cluster()
    old.handle(ev.MemberLost(at=10.0, member=m(1), cause=KILLED))
    facts = facts_of(old, 10.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=State) == facts
    again, _ = take_over(old.policy, facts, 10.0)
    assert again.roster.holders == old.roster.holders and again.roster.slots == old.roster.slots
    assert again.roster.next_number == old.roster.next_number and again.round.state.store == old.round.state.store


def test_that_the_world_has_committed_is_recorded_so_that_nobody_starts_it_over() -> None:
    old = cluster()
    facts = facts_of(old, 3.0)
    assert facts.round.established and facts.round.stage is Stage.TRAINING
    machine, _ = take_over(old.policy, facts, 3.0)
    hear_all(machine)
    (stop,) = of(StopJob, silence(machine, A, B, at=20.0))
    assert stop.reason.has(Code.NO_STRATEGY) and machine.round.state.founded_in == 1


def test_the_first_commit_is_recorded_once() -> None:
    machine = cluster()
    established = ev.MemberEstablished(at=3.0, member=m(0), generation=Generation(1), twin_key="all")
    assert of(RecordGeneration, machine.handle(established)) == []


def test_a_joiner_of_an_older_generation_is_still_a_joiner() -> None:
    """Its preparation begins to count anew: two coordinators do not share a clock."""
    old = cluster()
    old.handle(ev.MemberLost(at=10.0, member=m(1), cause=KILLED))
    old.handle(ev.MemberLost(at=10.1, member=m(2), cause=KILLED))
    machine, _ = take_over(old.policy, facts_of(old, 10.1), at=100_000.0)
    assert machine.roster.members[m(4)].standing is Standing.JOINING
    hear_all(machine, 100_000.1)
    assert of(KillMember, machine.handle(ev.Tick(at=100_001.0))) == []
    said = machine.handle(ev.MemberPrepared(at=100_002.0, member=m(4), generation=Generation(2), twin_key="all"))
    assert said == () and machine.roster.members[m(4)].standing is Standing.PREPARED


def test_a_member_that_nobody_saw_connect_is_asked_for_its_position() -> None:
    """Facts of the first generation were recorded before anybody was connected."""
    founded = cluster()
    for member in founded.roster.members.values():
        member.connected = False
    machine, _ = take_over(founded.policy, facts_of(founded, 5.0), 5.0)
    hear_all(machine)
    (abandon,) = of(AbandonGeneration, machine.handle(ev.MemberLost(at=9.0, member=m(1), cause=KILLED)))
    assert abandon.members == (m(0), m(2), m(3)) and machine.stage is Stage.STOPPING


def test_a_release_is_known_to_whoever_takes_over() -> None:
    old = cluster()
    for number in range(4):
        old.handle(ev.MemberFinished(at=9.0, member=m(number), generation=Generation(1)))
    machine, commands = take_over(old.policy, facts_of(old, 9.0), 9.0)
    assert commands == () and machine.released
    hear_all(machine)
    again = machine.handle(ev.MemberFinished(at=9.5, member=m(3), generation=Generation(1)))
    assert [c.members for c in of(ReleaseMembers, again)] == [(m(3),)]
    ended = Cause(kind=CauseKind.EXIT, detail="ended", exit_code=0)
    for number in range(4):
        commands = machine.handle(ev.MemberLost(at=10.0, member=m(number), cause=ended))
    (stop,) = of(StopJob, commands)
    assert stop.outcome is Outcome.SUCCEEDED


def test_a_job_that_has_ended_is_not_taken_up_again() -> None:
    old = cluster()
    commands = old.handle(ev.StopRequested(at=9.0, reason="enough", exit_code=130))
    (stop,) = of(StopJob, commands)
    assert [type(c) for c in commands].index(RecordGeneration) < [type(c) for c in commands].index(StopJob)
    machine, first = take_over(old.policy, facts_of(old, 9.0), 3.0)
    assert first == (stop,) and machine.stage is Stage.STOPPED
    assert machine.handle(ev.Tick(at=100.0)) == ()


def test_the_pace_of_steps_is_kept_so_that_slow_members_are_not_killed() -> None:
    old = cluster()
    old.handle(ev.PaceLearnt(at=5.0, pace=60.0))
    old.handle(ev.MemberLost(at=10.0, member=m(1), cause=KILLED))
    machine, _ = take_over(old.policy, facts_of(old, 10.0), 0.0)
    hear_all(machine, 1.0)
    assert of(KillMember, machine.handle(ev.Tick(at=250.0))) == []


def test_spares_that_were_started_are_recorded_first() -> None:
    """So that the next coordinator neither dismisses them nor gives their names to others."""
    machine = cluster()
    commands = machine.handle(ev.MemberLost(at=10.0, member=m(4), cause=KILLED))
    assert isinstance(commands[0], RecordGeneration)
    again, _ = take_over(machine.policy, facts_of(machine, 10.0), 10.0)
    assert m(6) in again.roster.members and again.roster.next_number == 7


def test_a_rank_is_given_away_as_soon_as_a_host_with_spares_is_heard() -> None:
    old = cluster()
    machine, _ = take_over(old.policy, facts_of(old, 3.0), 3.0)
    machine.handle(ev.MemberLost(at=4.0, member=m(1), cause=KILLED))
    assert machine.round.vacancies() == [1], "all hosts are silent still"
    commands = machine.handle(ev.HostHeard(at=5.0, host=SPARE, members=(m(4), m(5))))
    assert [c.member for c in of(AssignRank, commands)] == [m(4)]
    assert isinstance(commands[0], RecordGeneration)


def test_a_spare_that_is_not_connected_yet_has_its_rank_recorded() -> None:
    old = cluster()
    machine, _ = take_over(old.policy, facts_of(old, 3.0), 3.0)
    machine.handle(ev.MemberLost(at=9.1, member=m(1), cause=KILLED))
    machine.roster.members[m(4)].connected = False
    commands = machine.handle(ev.HostHeard(at=9.2, host=SPARE, members=(m(4), m(5))))
    assert of(AssignRank, commands) == []
    (recorded,) = of(RecordGeneration, commands)
    assert (Rank(1), m(4)) in recorded.holders


def test_what_a_member_says_again_does_no_harm() -> None:
    old = cluster()
    machine, _ = take_over(old.policy, facts_of(old, 3.0), 3.0)
    hear_all(machine)
    stale = ev.PositionReported(
        at=8.0, member=m(0), generation=Generation(1), position=Position(holds=StepNumber(1)), twin_key="all"
    )
    resumed = ev.MemberResumed(at=8.0, member=m(0), generation=Generation(1))
    assert machine.handle(stale) == () and machine.handle(resumed) == ()
    assert machine.generation == 1 and machine.stage is Stage.TRAINING
