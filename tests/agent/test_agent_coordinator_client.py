"""What an agent keeps while nobody listens, and what it tells whoever leads next. The stream is a list."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from understudy.agent.coordinator_client import CoordinatorClient, Introduction
from understudy.foundation.clock import SetClock
from understudy.foundation.exits import NO_RENDEZVOUS
from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.reasons import Code, because
from understudy.wire import host_messages as wire
from understudy.wire.inventory import HostInventory
from understudy.wire.messages import Measured

WISH = because(Code.REQUESTED, text="a coordinator's wish")
M = MemberId("m-0")
OWN = HostInventory(host_name="node-a", addresses=("10.0.0.1",))
KILLED = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)


@dataclass
class HostEffects:
    done: list[cmd.ToAgent] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)

    def tell(self, code: str, text: str, /, **_: object) -> None:
        self.told.append((code, text))

    def carry_out(self, command: cmd.ToAgent) -> None:
        self.done.append(command)


class Stream:
    """Takes what is written; the coordinator says nothing and goes when everything was told."""

    def __init__(self) -> None:
        self.told: list[wire.FromHost] = []

    async def write(self, data: bytes) -> None:
        message = wire.decode_from_host(data)
        assert not isinstance(message, wire.Unknown)
        self.told.append(message)

    async def read(self) -> object:
        for _ in range(20):
            await asyncio.sleep(0)
        return None


def client_of(effects: HostEffects, clock: SetClock | None = None, **more: Any) -> CoordinatorClient:
    introduction = Introduction(
        job="job",
        token="token",
        host="a",
        ranks=1,
        spares=0,
        place=None,
        settings={},
        store=lambda: "a:29500",
        members=lambda: [M],
        inventory=OWN,
    )
    return CoordinatorClient(
        introduction,
        effects=effects,
        addresses=["nowhere:1"],
        certificates=None,
        clock=clock or SetClock(),
        tell=effects.tell,
        **more,
    )


def test_what_monitors_call_this_host_is_part_of_every_greeting() -> None:
    client = client_of(HostEffects())
    assert client._greeting().inventory == client._greeting().inventory == OWN


def assign(bequest: bytes = b"", member: MemberId = M, rank: int = 3) -> wire.Order:
    command = cmd.AssignRank(
        member=member,
        rank=Rank(rank),
        slot=0,
        store=HostId("a"),
        generation=Generation(2),
        founded_in=Generation(1),
        founding=not bequest,
        world_size=4,
        local_world_size=1,
        bequest=bequest,
    )
    return wire.Order(term=1, command=command)


def retold(client: CoordinatorClient) -> list[wire.FromHost]:
    async def scene() -> list[wire.FromHost]:
        stream = Stream()
        await client._serve(stream)
        return stream.told

    return asyncio.run(scene())


def test_the_last_of_every_kind_is_told_again_and_the_pace() -> None:
    client = client_of(HostEffects())
    client.handle(ev.MemberConnected(at=0.0, member=M))
    client.handle(ev.MemberResumed(at=0.0, member=M, generation=Generation(2)))
    client.handle(ev.MemberResumed(at=0.0, member=M, generation=Generation(3)))
    client.handle(ev.PaceLearnt(at=0.0, pace=2.5))
    events = [wire.to_event(told, 9.0) for told in retold(client) if isinstance(told, wire.Happened)]
    assert events == [
        ev.MemberConnected(at=9.0, member=M),
        ev.MemberResumed(at=9.0, member=M, generation=Generation(3)),
        ev.PaceLearnt(at=9.0, pace=2.5),
    ]


def test_the_end_of_a_process_is_part_of_every_greeting_and_silences_it() -> None:
    client = client_of(HostEffects())
    client.handle(ev.MemberConnected(at=0.0, member=M))
    client.handle(ev.MemberLost(at=0.0, member=M, cause=KILLED))
    (end,) = client._greeting().ends
    assert wire.to_event(end, 5.0) == ev.MemberLost(at=5.0, member=M, cause=KILLED)
    assert retold(client) == []


def test_what_a_rank_left_is_told_first_even_when_its_process_is_gone() -> None:
    client = client_of(HostEffects())
    client._obey(assign())
    client.inherited(M, b"left")
    client.handle(ev.MemberLost(at=0.0, member=M, cause=KILLED))
    client.handle(ev.MemberConnected(at=0.0, member=MemberId("m-1")))
    first, *_ = retold(client)
    assert first == wire.Bequeathed(member=M, content=b"left", rank=3, world=1, again=True)


def test_what_a_joiner_inherits_and_what_another_host_left_is_kept_too() -> None:
    client = client_of(HostEffects())
    client._obey(assign(b"left"))
    other = wire.Bequeathed(member="m-9", content=b"other", rank=0, world=1)
    client._obey(wire.Keep(term=1, kept=other))
    client._obey(wire.Keep(term=1, kept=wire.Bequeathed(member="m-9", content=b"older", rank=0, world=0)))
    kept = {told.rank: told.content for told in retold(client) if isinstance(told, wire.Bequeathed)}
    assert kept == {3: b"left", 0: b"other"}


def test_orders_of_an_older_term_are_refused() -> None:
    effects = HostEffects()
    client = client_of(effects)
    client.term = 5
    client._obey(wire.Order(term=4, command=cmd.KillMember(member=M, reason=WISH)))
    assert effects.done == [] and client.refused == {"older term": 1}
    kill = cmd.KillMember(member=M, reason=WISH)
    client._obey(wire.Order(term=5, command=kill))
    assert effects.done == [kill]


def test_only_the_newest_steps_are_told_and_once_to_every_new_coordinator() -> None:
    client = client_of(HostEffects())
    for step in range(1000):
        client.advanced(step, step + 1)
    for _ in range(2):
        assert retold(client) == [wire.Advanced(smallest=999, largest=1000)]


def test_good_news_is_told_once() -> None:
    effects = HostEffects()
    client = client_of(effects)
    other = MemberId("m-1")
    for _ in range(2):  # an order may come twice
        client._obey(assign())
    client._obey(assign(member=other, rank=2))
    assert effects.told == [
        ("rank", "rank 3 is on this host: m-0, generation 2"),
        ("rank", "rank 2 is on this host: m-1, generation 2"),
    ]
    effects.told.clear()

    def resumes(member: MemberId, generation: int, **timings: float) -> None:
        client.measured(Measured(generation=generation, timings=timings))
        client.handle(ev.MemberResumed(at=0.0, member=member, generation=Generation(generation)))

    resumes(M, 3)  # saved only, for all processes begin anew
    resumes(other, 3)
    resumes(M, 4, regroup=0.1)
    assert effects.told == []
    for _ in range(2):
        resumes(other, 4, regroup=0.1)
    assert effects.told == [("recovered", "recovered: ranks [2, 3] of this host go on, generation 4")]
    client.handle(ev.MemberLost(at=0.0, member=other, cause=KILLED))
    resumes(M, 5, regroup=0.1)
    resumes(M, 4, regroup=0.1)
    assert effects.told[1:] == [("recovered", "recovered: ranks [3] of this host go on, generation 5")]


def test_a_host_without_ranks_does_not_look_for_a_coordinator_for_ever() -> None:
    """The time counts from its last connection, or from the end of its last rank; ranks that live train on."""
    effects, clock, ranks = HostEffects(), SetClock(), [3]
    client = client_of(effects, clock, patience=10.0, holds_ranks=lambda: bool(ranks))
    alone = []
    for at in (0.0, 60.0):
        clock.advance_to(at)
        alone.append(client._is_left_alone(since_now=False))
    ranks.clear()
    for at, connected in ((70.0, False), (79.0, False), (79.5, True), (89.0, False)):
        clock.advance_to(at)
        alone.append(client._is_left_alone(since_now=connected))
    assert not any(alone) and effects.done == []
    clock.advance_to(89.5)
    assert client._is_left_alone(since_now=False) and client.given_up
    (stop,) = effects.done
    assert isinstance(stop, cmd.StopJob) and stop.exit_code == NO_RENDEZVOUS and stop.reason.code == Code.NO_COORDINATOR


def test_a_host_that_is_to_look_for_ever_does() -> None:
    effects, clock = HostEffects(), SetClock()
    client = client_of(effects, clock, patience=0.0, holds_ranks=lambda: False)
    assert not client._is_left_alone(since_now=False)
    clock.advance_to(1e6)
    assert not client._is_left_alone(since_now=False) and effects.done == []
