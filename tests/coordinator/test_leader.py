"""One leadership: hosts come, go and come back; another coordinator goes on with what was kept."""

import asyncio

import msgspec
import pytest
from tests.coordinator.leader_play import KILLED, POLICY, Cluster, Host, change_leaders, play

from understudy.coordinator.leader import Leader
from understudy.errors import WireError
from understudy.foundation.ids import Generation, HostId, MemberId
from understudy.ledger.records import DecisionRecord
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code
from understudy.protocol.stages import Stage
from understudy.wire import host_messages as wire


def stage_of(leader: Leader) -> Stage:
    assert leader.coordinator is not None
    return leader.coordinator.machine.stage


def test_the_world_is_founded_when_all_hosts_are_there() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.attend(cluster.spare, cluster.a)
        assert cluster.a.living == []
        await cluster.attend(cluster.b)
        assert (cluster.a.living, cluster.b.living, cluster.spare.living) == (["m-0"], ["m-1"], ["m-2"])
        await cluster.say(cluster.a, ev.MemberConnected(at=0.0, member=MemberId("m-0")))
        (assign,) = cluster.a.told(cmd.AssignRank)
        assert assign.store_address == "spare:29500" and assign.local_world_size == 1

    play(scene)


def test_other_settings_are_refused_for_good() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.attend(cluster.a)
        changed = Policy(world_size=2, hosts=2, host_patience=3.0)
        with pytest.raises(
            WireError, match=r"other settings than the job: host-timeout 3.0 \(the job: 0.8\);"
        ) as refused:
            leader.welcome(cluster.b.greeting(changed))
        assert refused.value.kind == "settings"
        with pytest.raises(WireError, match="cannot be read") as refused:
            leader.welcome(msgspec.structs.replace(cluster.b.greeting(), settings={"world_size": "many"}))
        assert refused.value.kind == "settings"

    play(scene)


def test_a_host_with_other_cpus_is_welcome() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.attend(cluster.a)
        leader.welcome(cluster.b.greeting(Policy(world_size=2, hosts=2, donors_per_receiver=64)))

    play(scene)


def test_nobody_is_welcome_before_the_leader_knows_what_was_kept() -> None:
    async def scene(cluster: Cluster) -> None:
        term = await cluster.state_store.lead("boss:1")
        leader = Leader(term, state_store=cluster.state_store, clock=cluster.clock, journals=())
        with pytest.raises(WireError) as refused:
            leader.welcome(cluster.a.greeting())
        assert refused.value.kind == "standby"
        await leader.begin()
        assert not leader.welcome(cluster.a.greeting()).closed

    play(scene)


def test_a_host_speaks_only_for_its_own_members() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.a.line is not None
        stranger = wire.from_event(ev.MemberFinished(at=0.0, member=MemberId("m-1"), generation=Generation(1)))
        with pytest.raises(WireError, match="lives elsewhere"):
            leader.heard(cluster.a.line, stranger)
        with pytest.raises(WireError, match="second greeting"):
            leader.heard(cluster.a.line, cluster.a.greeting())

    play(scene)


def speak(leader: Leader, host: Host) -> None:
    assert host.line is not None
    event = ev.ActivityObserved(at=0.0, sightings=(), host=HostId(host.name))
    leader.heard(host.line, wire.from_event(event))


def test_a_silent_host_is_lost_when_its_patience_is_over() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.b.line is not None
        leader.gone(cluster.b.line, "the connection ended")
        cluster.a.read()
        assert cluster.a.told(cmd.WatchClosely), "is it the coordinator that is cut off?"
        cluster.clock.advance_to(100.0 + POLICY.host_patience - 0.1)
        speak(leader, cluster.a)
        leader._tick()
        await cluster.settle()
        assert stage_of(leader) is Stage.TRAINING
        cluster.clock.advance_to(100.0 + POLICY.host_patience)
        leader._tick()
        await cluster.settle()
        assert stage_of(leader) is Stage.STOPPING
        (assign,) = cluster.spare.told(cmd.AssignRank)
        assert (assign.member, assign.rank, assign.generation, assign.bequest) == ("m-2", 1, 2, b"left by m-1")

    play(scene)


def test_a_host_that_said_farewell_may_hold_ranks_again_at_once() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.spare.line is not None and leader.coordinator is not None
        cluster.spare.line.said_farewell = True
        leader.gone(cluster.spare.line, "its agent ended")
        assert leader.coordinator.machine.hosts.by_id[HostId("spare")].left

    play(scene)


def test_a_line_that_was_replaced_by_a_newer_one_is_no_silence() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        former = cluster.b.line
        await cluster.attend(cluster.b)
        assert former is not None and former.closed
        leader.gone(former, "the connection ended")
        assert leader.coordinator is not None and not leader.coordinator.machine.hosts.silent

    play(scene)


def test_a_host_that_comes_back_too_late_has_its_processes_dismissed() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.b.line is not None
        leader.gone(cluster.b.line, "the connection ended")
        cluster.clock.advance_to(102.0)
        speak(leader, cluster.a)
        leader._tick()
        await cluster.settle()
        await cluster.attend(cluster.b)
        (ended,) = cluster.b.told(cmd.DismissStranger)
        assert ended.member == "m-1" and ended.reason.code == Code.RANK_GIVEN_AWAY
        assert leader.coordinator is not None
        host = leader.coordinator.machine.hosts.by_id
        assert {id_: known.present for id_, known in host.items()} == {"spare": True, "a": True, "b": True}

    play(scene)


def test_the_end_is_told_to_all_hosts_and_to_those_that_come_later() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert leader.coordinator is not None
        leader.coordinator.request_stop("enough", 130)
        assert not leader.over.is_set(), "it is not recorded yet"
        await cluster.settle()
        assert leader.over.is_set() and leader.outcome is not None and leader.why_over == "enough"
        assert all(len(host.told(cmd.StopJob)) == 1 for host in cluster.hosts)
        await cluster.attend(cluster.a)
        assert len(cluster.a.told(cmd.StopJob)) == 2

    play(scene)


# -- another leader ----------------------------------------------------------------------------------------------------


def test_a_new_leader_disturbs_nobody_who_trains() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.train()
        leader = await change_leaders(cluster)
        await cluster.attend()
        assert stage_of(leader) is Stage.TRAINING and leader.term == 2
        assert all(isinstance(order, wire.Welcome) for host in cluster.hosts for order in host.orders)
        assert {host.term for host in cluster.hosts} == {2}

    play(scene)


def test_a_rank_that_died_while_nobody_led_is_replaced() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.train()
        await change_leaders(cluster)
        cluster.b.living.remove("m-1")
        lost = ev.MemberLost(at=0.0, member=MemberId("m-1"), cause=KILLED)
        cluster.b.ends.append(wire.from_event(lost))
        await cluster.attend()
        assert cluster.spare.told(cmd.AssignRank) == [], "what rank 1 left is not known yet"
        assert cluster.b.line is not None
        cluster.leader.heard(cluster.b.line, cluster.bequest("m-1", again=True))
        cluster.clock.advance_to(103.0)
        cluster.leader._tick()
        await cluster.settle()
        (assign,) = cluster.spare.told(cmd.AssignRank)
        assert (assign.member, assign.rank, assign.generation) == ("m-2", 1, 2)
        assert assign.store_address == "spare:29500" and assign.bequest == b"left by m-1"

    play(scene)


def test_what_a_rank_left_is_kept_on_another_host_too() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.attend()
        assert cluster.b.line is not None
        cluster.leader.heard(cluster.b.line, cluster.bequest("m-1"))
        await cluster.settle()
        kept = {host.name: host.copies() for host in cluster.hosts}
        (copy,) = kept.pop("spare")
        assert kept == {"a": [], "b": []} and copy.seal
        assert msgspec.structs.replace(copy, seal=b"") == cluster.bequest("m-1")
        cluster.leader.heard(cluster.b.line, cluster.bequest("m-1", again=True))
        await cluster.settle()
        assert sum(isinstance(order, wire.Keep) for host in cluster.hosts for order in host.orders) == 1

    play(scene)


def test_a_recovery_goes_on_under_the_new_leader() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.train()
        await cluster.lose(cluster.b, "m-1")
        leader = await change_leaders(cluster)
        cluster.a.orders.clear()
        await cluster.attend()
        told = cluster.a.told(cmd.AbandonGeneration)
        assert (("m-0",), 3) in [(command.members, command.generation) for command in told]
        prepared = ev.MemberPrepared(at=0.0, member=MemberId("m-2"), generation=Generation(2), twin_key="k")
        await cluster.say(cluster.spare, prepared)
        await cluster.report(cluster.a, 3)
        assert stage_of(leader) is Stage.FORMING
        for host in (cluster.a, cluster.spare):
            (resume,) = host.told(cmd.ResumeAt)
            assert (resume.generation, resume.step, resume.donors) == (3, 7, ((1, (0,)),))
            assert resume.store_address == "spare:29500" and resume.members == tuple(host.living)

    play(scene)


def test_a_leader_that_slept_cannot_record_and_so_decides_nothing() -> None:
    async def scene(cluster: Cluster) -> None:
        old = await cluster.lead()
        await cluster.train()
        lines = {host.name: host.line for host in cluster.hosts}
        await change_leaders(cluster)
        assert lines["b"] is not None
        old.gone(lines["b"], "the connection ended")
        cluster.clock.advance_to(110.0)
        old._tick()
        await cluster.settle()
        assert old.over.is_set() and "term 1 is over" in old.why_over and old.outcome is None
        for host in cluster.hosts:
            host.line = lines[host.name]
            assert host.read() == []

    play(scene)


def test_a_host_that_names_a_newer_term_is_refused_and_changes_nothing() -> None:
    """The state store knows the leader. A host that could depose a leader by a number would be an intruder's joy."""

    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        with pytest.raises(WireError) as refused:
            leader.welcome(Host("c", term=9).greeting())
        assert refused.value.kind == "later term"
        assert not leader.over.is_set() and all(host.line and not host.line.closed for host in cluster.hosts)

    play(scene)


def test_a_job_that_has_ended_is_told_so_by_the_next_leader() -> None:
    async def scene(cluster: Cluster) -> None:
        first = await cluster.lead()
        await cluster.train()
        assert first.coordinator is not None
        first.coordinator.request_stop("enough", 130)
        await cluster.settle()
        leader = await change_leaders(cluster)
        assert leader.outcome is not None and leader.outcome.exit_code == 130 and leader.over.is_set()
        cluster.a.orders.clear()
        await cluster.attend(cluster.a)
        assert len(cluster.a.told(cmd.StopJob)) == 1

    play(scene)


class FailingJournal:
    def append(self, _record: object) -> None:
        raise OSError(28, "No space left on device")


def test_a_journal_that_fails_loses_no_record_and_no_deadline() -> None:
    """A full disk under the ledger: it is said once, the others hear of everything, and time is watched."""

    async def scene(cluster: Cluster) -> None:
        said: list[str] = []
        term = await cluster.state_store.lead("boss:1")
        journals = (FailingJournal(), cluster.journal)
        leader = Leader(term, state_store=cluster.state_store, clock=cluster.clock, journals=journals, say=said.append)
        cluster.leader = leader
        await leader.begin()
        await cluster.train()
        assert cluster.b.line is not None
        leader.gone(cluster.b.line, "the connection ended")
        assert leader._timer is not None
        cluster.clock.advance_to(100.0 + POLICY.host_patience)
        speak(leader, cluster.a)
        leader._tick()
        await cluster.settle()
        assert stage_of(leader) is Stage.STOPPING and leader._timer is not None
        kinds = [record.kind for record in cluster.journal.records if isinstance(record, DecisionRecord)]
        assert kinds[0] == "start" and "swap" in kinds
        (text,) = [line for line in said if not line.startswith("run ")]
        assert "No space left on device" in text

    play(scene)


def test_a_tick_that_fails_does_not_leave_the_deadlines_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.b.line is not None and leader.coordinator is not None
        leader.gone(cluster.b.line, "the connection ended")

        def fail(_event: ev.Event) -> None:
            raise RuntimeError("a bug")

        leader._timer = None
        with monkeypatch.context() as patch:
            patch.setattr(leader.coordinator, "handle", fail)
            with pytest.raises(RuntimeError):
                leader._tick()
        assert leader._timer is not None, "the next look is due"
        now = asyncio.get_running_loop().time()
        assert leader._timer.when() - now > 0.5, "and not at once, should the bug be there again"
        cluster.clock.advance_to(100.0 + POLICY.host_patience)
        speak(leader, cluster.a)
        leader._tick()
        await cluster.settle()
        assert stage_of(leader) is Stage.STOPPING

    play(scene)
