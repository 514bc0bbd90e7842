"""Hosts come and go: events in, commands out."""

import pytest
from tests.protocol.cluster_play import KILLED, SPARE, A, B, cluster, m, of, report, silence, speak

from understudy.foundation.ids import Generation, HostId, MemberId
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    AbandonGeneration,
    AssignRank,
    DecisionKind,
    DismissStranger,
    KillMember,
    RecordDecision,
    RecordGeneration,
    StartMember,
    StopJob,
    WatchClosely,
)
from understudy.protocol.job import JobMachine
from understudy.protocol.liveness import Condition, Sighting
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage


def test_the_world_is_founded_when_enough_hosts_are_there() -> None:
    machine = JobMachine(Policy(world_size=4, hosts=2))
    assert machine.handle(ev.HostJoined(at=0.0, host=B, ranks=2, spares=1, place=1)) == ()
    commands = machine.handle(ev.HostJoined(at=1.0, host=A, ranks=2, spares=0, place=0))
    starts = [(c.seat and c.seat.rank, c.host) for c in commands if isinstance(c, StartMember)]
    assert starts == [(0, A), (1, A), (2, B), (3, B), (None, B)]
    seats = [c.seat for c in commands if isinstance(c, StartMember) and c.seat is not None]
    assert [(seat.local_rank, seat.local_world_size, seat.node_rank, seat.nodes) for seat in seats] == [
        *((0, 2, 0, 2), (1, 2, 0, 2)),
        *((0, 2, 1, 2), (1, 2, 1, 2)),
    ], "what a script reads before join() is what it would read under torchrun"
    assert {seat.store for seat in seats} == {A}


def test_a_spare_host_that_came_first_takes_no_place_among_those_with_ranks() -> None:
    machine = JobMachine(Policy(world_size=4, hosts=2))
    machine.handle(ev.HostJoined(at=0.0, host=SPARE, ranks=0, spares=2))
    machine.handle(ev.HostJoined(at=1.0, host=B, ranks=2, spares=0))
    commands = machine.handle(ev.HostJoined(at=2.0, host=A, ranks=2, spares=0))
    starts = [(c.host, c.seat.node_rank) for c in commands if isinstance(c, StartMember) and c.seat is not None]
    assert starts == [(B, 0), (B, 0), (A, 1), (A, 1)], "without a place, the order of arrival"


def test_the_first_hosts_hold_ranks_and_further_ones_are_spare() -> None:
    """`--nnodes 1:2`: both offer ranks."""
    machine = JobMachine(Policy(world_size=2, hosts=1))
    first = machine.handle(ev.HostJoined(at=0.0, host=B, ranks=2, spares=0))
    assert [(c.seat and c.seat.rank, c.host) for c in of(StartMember, first)] == [(0, B), (1, B)]
    machine.handle(ev.HostJoined(at=0.1, host=A, ranks=2, spares=0))
    assert (machine.hosts.by_id[A].ranks, machine.hosts.by_id[A].spares) == (0, 2)


def test_hosts_that_never_come_are_named_and_not_waited_for_without_an_end() -> None:
    """Whatever the clock says when the first host comes: a machine may have been up for months."""
    machine = JobMachine(Policy(world_size=4, hosts=2, setup_timeout=600.0))
    machine.handle(ev.HostJoined(at=5_000_000.0, host=B, ranks=2, spares=1, place=1))
    said: list[str] = []
    while (deadline := machine.next_deadline()) is not None:
        commands = machine.handle(ev.Tick(at=deadline))
        said += [sentence(command.reason) for command in commands if isinstance(command, RecordDecision)]
        if machine.generation or deadline > 5_001_000.0:
            break
    assert said[0] == "waiting for hosts: 1 of 2 hosts are there (b)" and 2 < len(said) < 10
    assert machine.stopped is not None and machine.stopped.exit_code == 69
    assert said[-1] == "no world within 600 s (--setup-timeout): only 1 of 2 hosts are there (b)"


def test_a_host_that_never_heard_of_its_spares_is_not_blamed_for_them() -> None:
    """The coordinator died with the orders to start them; the next one asks the host, which knows of none."""
    machine = cluster()
    for _ in range(5):
        spares = [member.id for member in machine.roster.on_host(SPARE)]
        assert spares
        machine.handle(ev.HostHeard(at=10.0, host=SPARE, members=()))
        machine.handle(ev.Tick(at=20.0))
    assert machine.hosts.by_id[SPARE].failures_in_a_row == 0 and machine.pool.can_take(20.0)


def test_local_ranks_count_from_nought_on_every_host() -> None:
    machine = cluster()
    slots = {member.rank: (member.host, member.slot) for member in machine.roster.seated()}
    assert slots == {0: (A, 0), 1: (A, 1), 2: (B, 0), 3: (B, 1)}


def test_a_silent_host_gets_its_patience_and_is_then_lost_with_all_its_ranks_in_one_generation() -> None:
    machine = cluster(host_patience=0.8)
    (ask,) = machine.handle(ev.HostSilent(at=10.0, host=B, why="the connection ended"))
    assert isinstance(ask, WatchClosely) and set(ask.hosts) == {A, SPARE}
    assert machine.next_deadline() == 10.8
    speak(machine, A, at=10.3)
    commands = machine.handle(ev.Tick(at=10.9))
    (swap,) = [c for c in commands if isinstance(c, RecordDecision) and c.kind is DecisionKind.SWAP]
    assert sentence(swap.reason) == "host b was lost with ranks 2, 3: it was silent for 0.9 s"
    lost = [c for c in commands if isinstance(c, RecordDecision) and c.kind is DecisionKind.HOST]
    assert [(c.rank, c.member) for c in lost] == [(2, m(2)), (3, m(3))], "their last records may be lost too"
    assert machine.generation == 2
    assigned = [(c.member, c.rank, c.slot) for c in commands if isinstance(c, AssignRank)]
    assert assigned == [(m(4), 2, 0), (m(5), 3, 1)]


def test_a_host_that_comes_back_in_time_is_not_lost() -> None:
    machine = cluster()
    machine.handle(ev.HostSilent(at=10.0, host=B, why="the connection ended"))
    assert machine.handle(ev.HostHeard(at=10.5, host=B, members=(m(2), m(3)))) == ()
    speak(machine, A, at=10.6)
    assert machine.handle(ev.Tick(at=11.0)) == () and machine.generation == 1


def test_a_coordinator_that_hears_nobody_does_not_believe_that_one_host_is_lost() -> None:
    machine = cluster(host_patience=0.8)
    machine.handle(ev.HostSilent(at=10.0, host=B, why="the connection ended"))
    assert machine.handle(ev.Tick(at=11.0)) == (), "nobody else has spoken since: it may be the coordinator itself"
    speak(machine, A, at=12.0)
    machine.handle(ev.Tick(at=12.1))
    assert machine.generation == 2, "another host is heard, so that this one is lost"


def test_a_coordinator_that_loses_most_hosts_at_once_suspects_itself() -> None:
    machine = cluster(host_patience=0.8)
    machine.handle(ev.HostSilent(at=10.0, host=A, why="the connection ended"))
    (note,) = of(RecordDecision, machine.handle(ev.HostSilent(at=10.4, host=B, why="the connection ended")))
    assert "2 of 3 hosts fell silent at once: this coordinator may be cut off itself" in sentence(note.reason)
    speak(machine, SPARE, at=10.5)
    assert machine.handle(ev.Tick(at=14.0)) == () and machine.generation == 1
    for host, members in ((A, (0, 1)), (B, (2, 3))):
        machine.handle(ev.HostHeard(at=15.0, host=host, members=tuple(map(m, members))))
    assert machine.handle(ev.Tick(at=40.0)) == () and machine.generation == 1, "all are back, and nothing was lost"


def test_most_hosts_that_stay_away_are_lost_in_the_end() -> None:
    machine = cluster(host_patience=0.8)
    for host in (A, B):
        machine.handle(ev.HostSilent(at=10.0, host=host, why="the connection ended"))
    machine.handle(ev.Tick(at=machine.next_deadline() or 0.0))
    assert not machine.hosts.by_id[A].present and not machine.hosts.by_id[B].present


def test_a_host_that_comes_back_too_late_loses_its_processes_and_then_offers_spares() -> None:
    machine = cluster(suspicion=5.0)
    silence(machine, B)
    commands = machine.handle(ev.HostHeard(at=12.0, host=B, members=(m(2), m(3))))
    assert [c.member for c in commands if isinstance(c, DismissStranger)] == [m(2), m(3)]
    machine.handle(ev.HostJoined(at=12.1, host=B, ranks=2, spares=0))
    assert machine.hosts.by_id[B].spares == 2 and machine.hosts.by_id[B].ranks == 0
    assert not machine.hosts.usable(B, 12.2) and machine.hosts.usable(B, 16.1)


def test_a_dead_process_is_replaced_on_its_own_host_if_that_has_a_spare() -> None:
    machine = JobMachine(Policy(world_size=2, hosts=2))
    machine.handle(ev.HostJoined(at=0.0, host=A, ranks=1, spares=1))
    machine.handle(ev.HostJoined(at=0.0, host=B, ranks=1, spares=1))
    for number in range(4):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    for number in (2, 3):  # m-2 on a, m-3 on b
        machine.handle(ev.MemberParked(at=1.5, member=m(number)))
    for number in range(2):
        machine.handle(
            ev.MemberEstablished(at=2.0, member=m(number), generation=Generation(1), twin_key="all", holdings=(1,))
        )
    commands = machine.handle(ev.MemberLost(at=10.0, member=m(1), cause=KILLED))
    (assigned,) = [c for c in commands if isinstance(c, AssignRank)]
    assert (assigned.member, assigned.rank, assigned.slot) == (m(3), 1, 0)


def test_the_store_moves_with_the_next_generation_when_its_host_is_lost() -> None:
    machine = cluster()
    assert machine.round.state.store == SPARE
    silence(machine, SPARE)
    assert machine.generation == 1, "nobody needs the store before the world is formed again"
    machine.handle(ev.HostJoined(at=12.0, host=HostId("another"), ranks=0, spares=1))
    machine.handle(ev.MemberLost(at=13.0, member=m(1), cause=KILLED))
    assert machine.generation == 2 and machine.round.state.store == A


def test_without_a_host_that_could_take_the_ranks_the_job_stops_and_says_so() -> None:
    machine = JobMachine(Policy(world_size=2, hosts=2))
    machine.handle(ev.HostJoined(at=0.0, host=A, ranks=1, spares=0))
    machine.handle(ev.HostJoined(at=0.0, host=B, ranks=1, spares=0))
    for number in range(2):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
        machine.handle(
            ev.MemberEstablished(at=2.0, member=m(number), generation=Generation(1), twin_key="all", holdings=(1,))
        )
    (stop,) = of(StopJob, silence(machine, B))
    assert stop.reason.has(Code.HOST_LOST) and stop.reason.has(Code.NO_SPARES_OFFERED)


def test_hosts_that_are_lost_together_cost_one_generation() -> None:
    machine = JobMachine(Policy(world_size=3, hosts=3))
    hosts = [HostId(name) for name in "abc"]
    machine.handle(ev.HostJoined(at=0.0, host=SPARE, ranks=0, spares=2))
    for host in hosts:
        machine.handle(ev.HostJoined(at=0.0, host=host, ranks=1, spares=0))
    for number in range(5):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    machine.handle(ev.MemberEstablished(at=2.0, member=m(0), generation=Generation(1), twin_key="all"))
    commands = silence(machine, hosts[1], hosts[2])
    assert machine.generation == 2 and len(of(RecordGeneration, commands)) == 1
    (swap,) = [c for c in of(RecordDecision, commands) if c.kind is DecisionKind.SWAP]
    lost_hosts = {(part.get("host"), part.get("ranks")) for part in swap.reason.all() if part.code == Code.HOST_LOST}
    assert lost_hosts == {("b", (1,)), ("c", (2,))}


def test_a_host_takes_no_more_than_it_has_room_for() -> None:
    machine = cluster()
    silence(machine, B)  # its ranks are on the spare host now, which is full
    (stop,) = of(StopJob, silence(machine, A, at=20.0))
    assert stop.reason.has(Code.HOSTS_FULL)


def test_a_rank_that_moves_away_leaves_room_for_a_spare() -> None:
    machine = cluster()
    machine.handle(ev.MemberLost(at=10.0, member=m(0), cause=KILLED))  # m-4 on the spare host takes it
    machine.handle(ev.MemberPrepared(at=10.1, member=m(4), generation=Generation(2), twin_key="all"))
    report(machine, 2, 1, 2, 3)
    for number in (1, 2, 3, 4):
        machine.handle(ev.MemberResumed(at=11.0, member=m(number), generation=Generation(2)))
    refill = machine.handle(ev.Tick(at=machine.next_deadline() or 0.0))
    assert [(c.member, c.host) for c in of(StartMember, refill)] == [(m(6), A)]


def test_a_host_under_suspicion_gets_its_spares_when_that_is_over() -> None:
    machine = cluster(suspicion=5.0)
    silence(machine, B)
    for number in (4, 5):
        machine.handle(ev.MemberPrepared(at=11.1, member=m(number), generation=Generation(2), twin_key="all"))
    report(machine, 2, 0, 1)
    for number in (0, 1, 4, 5):
        machine.handle(ev.MemberResumed(at=11.2, member=m(number), generation=Generation(2)))
    assert of(StartMember, machine.handle(ev.HostJoined(at=12.0, host=B, ranks=2, spares=0))) == []
    assert machine.next_deadline() == 16.0
    assert [c.host for c in of(StartMember, machine.handle(ev.Tick(at=16.0)))] == [B, B]


def test_an_order_to_kill_that_was_lost_on_the_way_is_given_again() -> None:
    machine = cluster()
    machine.handle(ev.MemberLost(at=10.0, member=m(0), cause=KILLED))
    machine.handle(ev.MemberPrepared(at=10.1, member=m(4), generation=Generation(2), twin_key="all"))
    report(machine, 2, 1, 2)

    def see_it_stopped(at: float) -> list[MemberId]:
        stopped = Sighting(member=m(3), condition=Condition.STOPPED, seconds=at - 10.0)
        return [
            c.member for c in of(KillMember, machine.handle(ev.ActivityObserved(at=at, sightings=(stopped,), host=B)))
        ]

    assert see_it_stopped(20.0) == [m(3)] and see_it_stopped(20.3) == [], "once is enough"
    machine.handle(ev.HostSilent(at=20.4, host=B, why="the connection ended"))
    said = machine.handle(ev.HostHeard(at=20.5, host=B, members=(m(2), m(3))))
    assert [c.members for c in of(AbandonGeneration, said)] == [(m(2), m(3))]
    assert see_it_stopped(21.0) == [m(3)]


def test_nobody_on_a_silent_host_is_said_to_hang() -> None:
    machine = cluster(host_patience=60.0)
    machine.handle(ev.MemberLost(at=10.0, member=m(0), cause=KILLED))
    machine.handle(ev.HostSilent(at=11.0, host=B, why="the connection ended"))
    report(machine, 2, 1)
    assert of(KillMember, machine.handle(ev.Tick(at=30.0))) == []


@pytest.mark.parametrize("silent", [False, True])
def test_a_stopped_rank_is_not_ended_while_the_host_of_its_only_twin_is_silent(silent: bool) -> None:
    """That host may be lost, and then the stopped rank is the last that holds the state."""
    machine = cluster(twins=("x", "y", "x", "y"), host_patience=60.0)
    ended: list[KillMember] = []
    for at in (11.0, 11.6, 12.2, 12.6):
        if at > 12.0 and silent:
            machine.handle(ev.HostSilent(at=12.0, host=B, why="the connection ended"))
        else:
            waits = tuple(Sighting(member=m(n), condition=Condition.WAITING, seconds=at - 10.0) for n in (2, 3))
            ended += of(KillMember, machine.handle(ev.ActivityObserved(at=at, host=B, sightings=waits)))
        sightings = (
            Sighting(member=m(0), condition=Condition.STOPPED, seconds=at - 10.0),
            Sighting(member=m(1), condition=Condition.WAITING, seconds=at - 10.0),
        )
        ended += of(KillMember, machine.handle(ev.ActivityObserved(at=at, host=A, sightings=sightings)))
        ended += of(KillMember, machine.handle(ev.Tick(at=at + 0.25)))
    assert [kill.member for kill in ended] == ([] if silent else [m(0)])


def test_the_loss_of_a_host_whose_spares_were_the_last_hope_stops_the_job() -> None:
    machine = cluster(host_patience=0.8)
    machine.handle(ev.HostSilent(at=9.0, host=A, why="the connection ended"))
    machine.handle(ev.HostSilent(at=9.5, host=SPARE, why="the connection ended"))
    machine.handle(ev.Tick(at=24.0))
    report(machine, 2, 2, 3)
    assert machine.stage is Stage.STOPPING and machine.stopped is None, "the spare host may come back"
    (stop,) = of(StopJob, machine.handle(ev.Tick(at=24.6)))
    assert "host a was lost with ranks 0, 1" in sentence(stop.reason) and stop.reason.has(Code.HOSTS_FULL)


def test_members_lost_together_are_one_attempt() -> None:
    machine = JobMachine(Policy(world_size=30, spares=30))
    machine.handle(ev.JobStarted(at=0.0))
    for number in range(60):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    machine.handle(ev.MemberEstablished(at=2.0, member=m(0), generation=Generation(1), twin_key="all"))
    for number in range(1, 26):
        machine.handle(ev.MemberLost(at=10.0 + number / 100, member=m(number), cause=KILLED))
    assert machine.stopped is None and machine.generation == 26


def test_a_host_that_is_lost_while_scripts_end_fails_the_job() -> None:
    machine = cluster()
    for number in range(4):
        machine.handle(ev.MemberFinished(at=9.0, member=m(number), generation=Generation(1)))
    (stop,) = of(StopJob, silence(machine, B))
    assert stop.reason.has(Code.LOST_AT_THE_END)


@pytest.mark.parametrize("left", [True, False])
def test_a_host_that_left_in_an_orderly_way_is_in_no_quarantine(left: bool) -> None:
    """A drained machine that was repaired comes back under the same name, and so does a pod that was made anew."""
    machine = cluster()
    machine.handle(ev.HostSilent(at=10.0, host=SPARE, why="its agent ended", left=left))
    speak(machine, A, at=10.3)
    machine.handle(ev.Tick(at=12.0))
    assert not machine.hosts.by_id[SPARE].present
    machine.handle(ev.HostJoined(at=13.0, host=SPARE, ranks=2, spares=0))
    assert machine.hosts.usable(SPARE, 13.0) is left


def test_a_host_that_left_with_ranks_on_it_is_in_quarantine() -> None:
    machine = cluster()
    machine.handle(ev.HostSilent(at=10.0, host=B, why="its agent ended", left=True))
    speak(machine, A, at=10.3)
    machine.handle(ev.Tick(at=12.0))
    machine.handle(ev.HostJoined(at=13.0, host=B, ranks=2, spares=0))
    assert not machine.hosts.usable(B, 13.0)


def test_a_host_that_comes_back_after_all_has_not_left() -> None:
    machine = cluster()
    machine.handle(ev.HostSilent(at=10.0, host=SPARE, why="its agent ended", left=True))
    machine.handle(ev.HostHeard(at=10.1, host=SPARE, members=(m(4), m(5))))
    machine.handle(ev.HostSilent(at=20.0, host=SPARE, why="the connection ended"))
    speak(machine, A, at=20.3)
    machine.handle(ev.Tick(at=22.0))
    machine.handle(ev.HostJoined(at=23.0, host=SPARE, ranks=2, spares=0))
    assert not machine.hosts.usable(SPARE, 23.0)
