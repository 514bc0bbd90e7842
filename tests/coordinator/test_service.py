"""One stream per host, over real gRPC: who is heard, who is refused, and what a leader may do after its term."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.coordinator.lines import LIMIT, POLICY, TOKEN, attending, coordinator, greeting, line_to, play, until

from understudy.coordinator.service import Service
from understudy.coordinator.state_store import SharedMemoryState
from understudy.errors import SettingsError
from understudy.foundation.ids import Generation, HostId, MemberId, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.liveness import Condition, Sighting
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.protocol.stages import Stage
from understudy.wire import host_messages as wire
from understudy.wire import versions
from understudy.wire.issuing import make_set
from understudy.wire.versions import PROTOCOL

pytestmark = pytest.mark.timeout(LIMIT + 10)


def test_two_hosts_found_a_world_and_a_death_opens_a_generation_on_both() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a") as a, attending(place, "b") as b:
            for agent in (a, b):
                start = await agent.hear(cmd.StartMember)
                assert start.seat is not None
                await agent.tell(ev.MemberConnected(at=0.0, member=start.member))
                assigned = await agent.hear(cmd.AssignRank)
                assert assigned.world_size == 2
                await agent.tell(
                    ev.MemberEstablished(at=0.0, member=start.member, generation=assigned.generation, twin_key="k")
                )
            machine = await _machine(place)
            await until(lambda: machine.stage is Stage.TRAINING, "a founded world")
            spare = next(member for member in machine.roster.members.values() if member.rank is None)
            owner = a if spare.host == "a" else b
            await owner.tell(ev.MemberConnected(at=0.0, member=spare.id))
            await owner.tell(ev.MemberParked(at=0.0, member=spare.id))
            await until(lambda: bool(machine.roster.parked), "a warm spare")
            victim = next(member for member in machine.roster.seated() if member.host == "a")
            await a.tell(ev.MemberLost(at=0.0, member=victim.id, cause=_killed()))
            told = await b.hear(cmd.AbandonGeneration)
            assert told.generation == machine.generation == 2
            assert place.state_store is not None and await place.state_store.read() is not None

    play(story)


async def _machine(place: Any) -> Any:
    await until(lambda: place.leading.coordinator is not None, "a coordinator")
    return place.leading.coordinator.machine


def _killed() -> Cause:
    return Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)


def test_a_silent_host_is_lost_when_its_patience_is_over_and_not_before_it_came_back() -> None:
    async def story() -> None:
        async with coordinator() as place:
            async with attending(place, "a"), attending(place, "b"):
                machine = await _machine(place)
                await until(lambda: machine.generation == 1, "a world")
            await until(lambda: not place.leading.lines.lines, "both lines to end")
            hosts = machine.hosts.by_id
            assert hosts[HostId("a")].silent_since is not None
            async with attending(place, "a", members=[m.id for m in machine.roster.on_host(HostId("a"))]):
                await until(lambda: hosts[HostId("a")].silent_since is None, "host a to be heard again")
                await until(lambda: machine.stopped or not hosts[HostId("b")].present, "host b to be lost")

    play(story)


def test_a_host_that_comes_again_takes_the_place_of_its_former_line() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a") as first:
            await until(lambda: HostId("a") in place.leading.lines.lines, "the first line")
            former = place.leading.lines.lines[HostId("a")]
            async with attending(place, "a"):
                assert await first.ended() != "OK"
                assert place.leading.lines.lines[HostId("a")] is not former
                machine = await _machine(place)
                assert machine.hosts.by_id[HostId("a")].silent_since is None

    play(story)


def test_a_standby_refuses_and_says_who_leads() -> None:
    async def story() -> None:
        async with coordinator(leads=False) as place, line_to(place) as agent:
            place.service.leads = "elsewhere:1"
            await agent.say(greeting())
            refusal = await agent.hear(wire.Refuse)
            assert not refusal.final and refusal.leader == "elsewhere:1"
            assert place.service.refused == {"standby": 1}

    play(story)


# -- a leader after its term -------------------------------------------------------------------------------------------


def test_a_leader_whose_term_is_over_decides_nothing_and_says_nothing_more() -> None:
    """Orders that still wait in its queues stay there, and what hosts tell it changes nothing."""

    async def story() -> None:
        shared = SharedMemoryState()
        async with coordinator(shared=shared) as old, attending(old, "a") as a, attending(old, "b") as b:
            machine = await _machine(old)
            start = await a.hear(cmd.StartMember)
            await b.hear(cmd.StartMember)
            before = (machine.generation, machine.stage, await old.state_store.read())
            old.state_store.depose()  # in the same moment, before anything else runs:
            old.leading.lines.carry_out(cmd.KillMember(member=start.member, reason=because(Code.TOLD, text="too late")))
            await a.tell(ev.MemberLost(at=0.0, member=start.member, cause=_killed()))
            with pytest.raises(AssertionError, match="the line ended"):
                await _hear_or_end(a, cmd.KillMember)
            await _hear_end(b)
            assert (machine.generation, machine.stage, await old.state_store.read()) == before
            assert old.leading.over.is_set() and not old.leading.lines.lines
            async with line_to(old) as again:
                await again.say(greeting("a"))
                assert not (await again.hear(wire.Refuse)).final

    play(story)


async def _hear_or_end(agent: Any, kind: type[Any]) -> None:
    try:
        await agent.hear(kind)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"the line ended: {error}") from None


async def _hear_end(agent: Any) -> None:
    assert await agent.ended() != "OK"


def test_the_next_leader_goes_on_from_what_was_kept_and_the_old_one_cannot_write() -> None:
    async def story() -> None:
        shared = SharedMemoryState()
        async with coordinator(shared=shared) as old, coordinator(shared=shared, leads=False) as new:
            async with attending(old, "a") as a, attending(old, "b") as b:
                starts = {"a": await a.hear(cmd.StartMember), "b": await b.hear(cmd.StartMember)}
            old.state_store.depose()
            await new.lead()
            members = {host: [start.member] for host, start in starts.items()}
            async with attending(new, "a", members=members["a"], term=1) as again:
                machine = await _machine(new)
                assert machine.generation == 1 and new.leading.term == 2
                await again.tell(ev.MemberConnected(at=0.0, member=MemberId(members["a"][0])))
                assert (await again.hear(wire.Order)).term == 2
            old.leading.gone(old.leading.lines.open(HostId("a")), "a late thought")
            assert shared.term == 2 and await new.state_store.read() == shared.facts

    play(story)


def test_a_job_that_has_ended_stays_ended_for_the_next_leader() -> None:
    async def story() -> None:
        shared = SharedMemoryState()
        async with coordinator(shared=shared) as old, coordinator(shared=shared, leads=False) as new:
            async with attending(old, "a") as a, attending(old, "b"):
                await a.hear(cmd.StartMember)
                deciding, run = old.leading.coordinator, old.leading.run
                assert deciding is not None
                deciding.request_stop("enough", 5)
                assert (await a.hear(cmd.StopJob)).exit_code == 5
            await old.leading.over.wait()
            old.state_store.depose()
            await new.lead()
            assert new.leading.over.is_set() and new.leading.outcome == old.leading.outcome
            assert not new.leading.all_told
            async with attending(new, "a", run=run) as late:
                assert (await late.hear(cmd.StopJob)).reason == because(Code.STOP_REQUESTED, text="enough")
            async with line_to(new) as early:
                await early.say(greeting("a"))
                refusal = await early.hear(wire.Refuse)
                assert "is for the next one" in refusal.reason and not refusal.final
            await new.leading.record_farewell()
            new.state_store.depose()
            await old.lead()
            assert old.leading.outcome is not None and old.leading.all_told

    play(story)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_token_that_is_wrong_is_refused_without_a_word_about_the_job() -> None:
    async def story() -> None:
        async with coordinator() as place, line_to(place, token="another token of some length") as agent:
            await agent.say(greeting())
            assert await agent.ended() == "UNAUTHENTICATED"
            assert place.service.refused == {"unauthorised": 1}
            assert place.leading.coordinator is None

    play(story)


@pytest.mark.parametrize(
    ("changes", "kind", "final"),
    [
        ({"job": "another"}, "job", True),
        ({"settings": {"world_size": "many"}}, "settings", True),
        ({"settings": {"world_size": 3, "hosts": 2}}, "settings", True),
        ({"settings": {"world_size": 0, "hosts": 0}}, "settings", True),
        ({"term": 7}, "later term", False),
    ],
)
def test_who_belongs_elsewhere_is_refused_with_a_reason(changes: dict[str, Any], kind: str, final: bool) -> None:
    async def story() -> None:
        async with coordinator() as place, line_to(place) as agent:
            await agent.say(greeting(**changes))
            refusal = await agent.hear(wire.Refuse)
            assert refusal.reason and refusal.final is final
            assert place.service.refused == {kind: 1} and place.leading.coordinator is None

    play(story)


def test_a_host_with_other_flags_than_the_job_is_refused() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a"), line_to(place) as agent:
            other = {**msgspec.to_builtins(POLICY), "max_replacements": 1}
            await agent.say(greeting("b", settings=other))
            assert "same flags" in (await agent.hear(wire.Refuse)).reason

    play(story)


def test_a_host_speaks_for_its_own_members_only() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a") as a, attending(place, "b") as b:
            start = await a.hear(cmd.StartMember)
            machine = await _machine(place)
            await b.tell(ev.MemberLost(at=0.0, member=start.member, cause=_killed()))
            await _hear_end(b)
            assert place.service.refused == {"not its own": 1}
            assert start.member in machine.roster.members
            for message in (
                wire.Bequeathed(member=start.member, content=b"x"),
                wire.from_event(
                    ev.ActivityObserved(
                        at=0.0,
                        sightings=(Sighting(member=start.member, condition=Condition.STOPPED),),
                        host=HostId("b"),
                    )
                ),
                wire.from_event(ev.ActivityObserved(at=0.0, sightings=(), host=HostId("a"))),
            ):
                async with attending(place, "b") as again:
                    await again.say(message)
                    await _hear_end(again)
            end = wire.from_event(ev.MemberLost(at=0.0, member=start.member, cause=_killed()))
            async with line_to(place) as again:
                await again.say(greeting("b", ends=[end]))
                await _hear_end(again)
            assert place.service.refused == {"not its own": 5}
            assert HostId("a") in place.leading.lines.lines

    play(story)


def test_what_belongs_to_an_older_generation_changes_nothing() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a") as a, attending(place, "b"):
            start = await a.hear(cmd.StartMember)
            machine = await _machine(place)
            await until(lambda: machine.generation == 1, "a world")
            member = start.member
            for event in (
                ev.MemberResumed(at=0.0, member=member, generation=Generation(0)),
                ev.RecoveryFailed(at=0.0, member=member, generation=Generation(0), why="?"),
                ev.PositionReported(
                    at=0.0, member=member, generation=Generation(0), position=Position(holds=StepNumber(3))
                ),
            ):
                await a.tell(event)
            await until(lambda: place.leading.lines.dropped["older generation"] == 3, "all three to be refused")
            assert machine.generation == 1 and machine.stage is Stage.FOUNDING

    play(story)


def test_a_line_that_says_nothing_is_ended() -> None:
    async def story() -> None:
        async with coordinator(greeting_limit=0.2) as place, line_to(place) as agent:
            assert await agent.ended() == "INVALID_ARGUMENT"
            assert place.service.refused == {"no greeting": 1}

    play(story)


def test_a_line_whose_agent_does_not_read_is_ended() -> None:
    """gRPC holds back what is not read, so the queue grows until its limit."""

    async def story() -> None:
        async with coordinator() as place, attending(place, "a") as agent:
            line = place.leading.lines.lines[HostId("a")]
            told = (MemberId("m-0"),)
            command = cmd.AbandonGeneration(
                generation=Generation(1), members=told, reason=because(Code.TOLD, text="x" * 4_000_000)
            )
            for _ in range(100):
                line.put(wire.Order(term=1, command=command))
            assert line.closed
            await until(lambda: not place.leading.lines.lines, "the line to be gone")
            assert await agent.ended() != "OK"

    play(story)


def test_handshakes_that_never_begin_are_bounded(tmp_path: Path) -> None:
    """Each of them costs memory before anybody has shown a certificate."""
    make_set(tmp_path, ["boss"])

    async def story() -> None:
        async with coordinator(max_hosts=20, certificates=tmp_path / "boss") as place:
            idle = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(60)]
            ends = [asyncio.create_task(reader.read()) for reader, _ in idle]
            await until(lambda: sum(end.done() for end in ends) == 40, "those beyond the limit to be closed", 5.0)
            for _, writer in idle:
                writer.close()
            await asyncio.gather(*ends, return_exceptions=True)

    play(story)


def test_two_coordinators_cannot_have_one_port() -> None:
    async def story() -> None:
        async with coordinator() as place:
            with pytest.raises(SettingsError, match="--listen"):
                await Service("job", TOKEN).open(place.address, None)

    play(story)


# -- other versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "term", "final"), [(0, 0, True), (99, 0, True), (99, 1, False)])
def test_a_host_of_a_version_too_far_away_is_refused_and_not_ended_if_it_trains(
    protocol: int, term: int, final: bool
) -> None:
    async def story() -> None:
        async with coordinator() as place, line_to(place) as agent:
            await agent.say(greeting(protocol=protocol, version="9.9", term=term))
            refusal = await agent.hear(wire.Refuse)
            assert "host a is version 9.9" in refusal.reason and refusal.final is final
            assert place.service.refused == {"version": 1}

    play(story)


def test_two_hosts_that_are_too_far_from_each_other_are_not_in_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are neighbours of the coordinator, but their ranks would speak with each other."""
    monkeypatch.setattr(versions, "PROTOCOL", 2)

    async def story() -> None:
        async with coordinator() as place, attending(place, "a", protocol=3), line_to(place) as b:
            await b.say(greeting("b", protocol=1))
            refusal = await b.hear(wire.Refuse)
            assert "upgrade host b first" in refusal.reason and refusal.final
            assert place.service.refused == {"version": 1}
            async with attending(place, "b", protocol=2):
                assert set(place.leading.lines.lines) == {"a", "b"}

    play(story)


def test_what_a_newer_host_adds_disturbs_nothing() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a", protocol=PROTOCOL + 1) as agent:
            await agent.stream.write(msgspec.msgpack.encode({"type": "Temperature", "celsius": 90}))
            await agent.stream.write(msgspec.msgpack.encode({"type": "Happened", "event": {"type": "FanFailed"}}))
            dropped = place.leading.lines.dropped
            await until(lambda: dropped["unknown message"] == 2, "both to be dropped")
            assert "a" in place.leading.lines.lines

    play(story)
