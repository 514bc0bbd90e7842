"""Hosts that may be used again, and hosts that hold no more ranks than they have places."""

from tests.protocol.cluster_play import KILLED, SPARE, A, B, cluster, m, of, silence

from understudy.foundation.ids import HostId, Rank
from understudy.protocol import events as ev
from understudy.protocol.commands import KillMember, RecordDecision, StartMember
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import DrainHost, KeepSpares, MoveRanks, UndrainHost
from understudy.protocol.sentences import sentence
from understudy.protocol.takeover import facts_of, take_over

WHY = "it was repaired"


def test_a_drain_that_nobody_prepares_for_is_called_off() -> None:
    machine = cluster()
    machine.handle(DrainHost(at=5.0, host=SPARE, reason="maintenance"))
    machine.handle(UndrainHost(at=6.0, host=SPARE, reason=WHY))
    assert machine.hosts.usable(SPARE, 6.0)
    machine.handle(KeepSpares(at=7.0, host=SPARE, spares=0, reason="nobody is to be there"))
    machine.handle(KeepSpares(at=7.5, host=SPARE, spares=2, reason="they come again, and are not warm yet"))
    machine.handle(DrainHost(at=8.0, host=A, reason="maintenance"))
    assert set(machine.migration.state.reasons) == {0, 1} and not machine.roster.understudies
    commands = machine.handle(UndrainHost(at=9.0, host=A, reason=WHY))
    told = [record.reason for record in of(RecordDecision, commands)]
    assert sentence(told[0]) == "host a is used again (it was drained): it was repaired"
    assert not machine.migration.state.reasons and sum(reason.has(Code.DRAIN_CALLED_OFF) for reason in told) == 2


def test_a_rank_for_which_somebody_prepares_moves_all_the_same() -> None:
    machine = cluster()
    machine.handle(DrainHost(at=5.0, host=A, reason="maintenance"))
    machine.handle(UndrainHost(at=6.0, host=A, reason=WHY))
    assert set(machine.roster.understudies) == set(machine.migration.state.reasons) == {0, 1}


def test_a_wish_of_somebody_else_outlives_the_drain() -> None:
    machine = cluster()
    machine.handle(KeepSpares(at=4.0, host=SPARE, spares=0, reason="x"))
    machine.handle(KeepSpares(at=4.5, host=SPARE, spares=2, reason="x"))
    machine.handle(MoveRanks(at=5.0, ranks=(Rank(0),), reason="its fan is loud"))
    machine.handle(DrainHost(at=5.5, host=A, reason="maintenance"))
    machine.handle(UndrainHost(at=6.0, host=A, reason=WHY))
    assert machine.migration.state.reasons == {0: because(Code.REQUESTED, text="its fan is loud")}


def test_suspicion_is_lifted_and_spares_come_at_once() -> None:
    machine = cluster()
    silence(machine, SPARE)
    machine.handle(ev.HostJoined(at=20.0, host=SPARE, ranks=0, spares=2))
    assert not machine.hosts.usable(SPARE, 20.0)
    commands = machine.handle(UndrainHost(at=21.0, host=SPARE, reason=WHY))
    assert of(RecordDecision, commands)[0].reason.has(Code.WAS_SUSPECT)
    assert machine.hosts.usable(SPARE, 21.0) and len(of(StartMember, commands)) == 2


def test_a_host_on_which_spares_died_is_tried_again() -> None:
    machine = cluster()
    host = machine.hosts.by_id[SPARE]
    host.failures_in_a_row = machine.policy.spare_failures_in_a_row
    machine.handle(UndrainHost(at=6.0, host=SPARE, reason=WHY))
    assert host.failures_in_a_row == 0


def test_what_is_refused() -> None:
    machine = cluster()
    assert machine.refusal(UndrainHost(at=5.0, host=A, reason=WHY)) == because(Code.HOST_IN_USE, host=A)
    unknown = machine.refusal(UndrainHost(at=5.0, host=HostId("z"), reason=WHY))
    assert unknown == because(Code.NO_SUCH_HOST, host="z", hosts=("a", "b", "spare"))


def test_spares_that_an_operator_adds_are_for_the_ranks_of_their_host() -> None:
    """Host b has two places and two ranks. A rank of host a must not become its third."""
    machine = cluster()
    machine.handle(KeepSpares(at=3.0, host=SPARE, spares=0, reason="it is needed elsewhere"))
    started = of(StartMember, machine.handle(KeepSpares(at=4.0, host=B, spares=1, reason="to be safe")))
    spare = started[0].member
    machine.handle(ev.MemberConnected(at=4.5, member=spare))
    machine.handle(ev.MemberParked(at=4.5, member=spare))
    refused = machine.refusal(MoveRanks(at=5.0, ranks=(Rank(0),), reason=WHY))
    assert refused is not None and refused.code == Code.NO_SPARE
    assert machine.refusal(MoveRanks(at=5.0, ranks=(Rank(2),), reason=WHY)) is None
    successor, _ = take_over(machine.policy, facts_of(machine, 5.0), 5.0)
    assert successor.hosts.by_id[B].places == 2
    machine.handle(ev.MemberLost(at=6.0, member=m(2), cause=KILLED))
    assert machine.roster.holders[Rank(2)] == spare  # its own host's rank takes the place that became free


def test_a_lost_rank_does_not_become_the_third_of_a_host_with_two_places() -> None:
    machine = cluster()
    machine.handle(KeepSpares(at=3.0, host=SPARE, spares=0, reason="it is needed elsewhere"))
    (start,) = of(StartMember, machine.handle(KeepSpares(at=4.0, host=B, spares=1, reason="to be safe")))
    machine.handle(ev.MemberConnected(at=4.5, member=start.member))
    machine.handle(ev.MemberParked(at=4.5, member=start.member))
    commands = machine.handle(ev.MemberLost(at=6.0, member=m(0), cause=KILLED))
    holder = machine.roster.holders.get(Rank(0))
    assert holder != start.member and not of(KillMember, commands)
    assert holder is None or machine.roster.members[holder].host == A
