"""A leader without a network: a test is the agents of its hosts."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from tests.coordinator.acting import RememberingJournal

from understudy.coordinator.hosts import HostConnection
from understudy.coordinator.leader import Leader
from understudy.coordinator.runs import NOTHING_PAST, Past
from understudy.coordinator.state_store import MemoryStateStore, SharedMemoryState, StateStore
from understudy.foundation.clock import SetClock
from understudy.foundation.ids import Generation, MemberId, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.policy import Policy
from understudy.protocol.positions import Position
from understudy.wire import host_messages as wire
from understudy.wire.inventory import HostInventory

POLICY = Policy(world_size=2, hosts=2)
_Command = TypeVar("_Command", bound=cmd.Command)
KILLED = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9)


@dataclass
class Host:
    """What the agent of a host has heard, and who lives there."""

    name: str
    ranks: int = 1
    spares: int = 0
    living: list[str] = field(default_factory=list)
    ends: list[wire.Happened] = field(default_factory=list)
    orders: list[wire.ToHost] = field(default_factory=list)
    term: int = 0
    inventory: HostInventory | None = None
    run: str = ""
    agent: str = ""
    line: HostConnection | None = None

    def greeting(self, settings: Policy = POLICY) -> wire.Attend:
        return wire.Attend(
            job="job",
            host=self.name,
            ranks=self.ranks,
            spares=self.spares,
            place=None,
            store=f"{self.name}:29500",
            term=self.term,
            members=list(self.living),
            ends=list(self.ends),
            settings=msgspec.to_builtins(settings),
            inventory=self.inventory,
            run=self.run,
            agent=self.agent or f"agent of {self.name}",
        )

    def read(self) -> list[wire.ToHost]:
        """New orders; processes that are to be started live from now on."""
        new: list[wire.ToHost] = []
        while self.line is not None and not self.line._waiting.empty():
            order = wire.decode_to_host(self.line._waiting.get_nowait())
            assert not isinstance(order, wire.Unknown)
            new.append(order)
        for order in new:
            if isinstance(order, wire.Order) and isinstance(order.command, cmd.StartMember):
                self.living.append(order.command.member)
            elif isinstance(order, wire.Welcome):
                self.term, self.run = order.term, order.run
        self.orders += new
        return new

    def copies(self) -> list[wire.Bequeathed]:
        """What it was given to keep for other hosts."""
        return [order.kept for order in self.orders if isinstance(order, wire.Keep)]

    def told(self, kind: type[_Command]) -> list[_Command]:
        """The commands of this kind in its orders."""
        orders = [order for order in self.orders if isinstance(order, wire.Order)]
        return [order.command for order in orders if isinstance(order.command, kind)]


class Cluster:
    """Hosts a and b with one rank each, and a spare host with one spare."""

    def __init__(self, state_store: StateStore | None = None, shared: SharedMemoryState | None = None) -> None:
        self.clock, self.journal = SetClock(100.0), RememberingJournal()
        self.said: list[str] = []
        self.state_store = state_store or MemoryStateStore(shared)
        self.a, self.b, self.spare = Host("a"), Host("b"), Host("spare", ranks=0, spares=1)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return (self.spare, self.a, self.b)

    async def lead(self, name: str = "boss:1", past: Past = NOTHING_PAST) -> Leader:
        term = await self.state_store.lead(name)
        self.leader = Leader(
            term,
            state_store=self.state_store,
            clock=self.clock,
            journals=(self.journal,),
            say=self.said.append,
            past=past,
        )
        await self.leader.begin()
        return self.leader

    async def attend(self, *hosts: Host) -> None:
        for host in hosts or self.hosts:
            host.line = self.leader.welcome(host.greeting())
            self.leader.attended(host.greeting())
            await self.settle()

    async def settle(self) -> None:
        """What was asked of the state store is done, and orders are read."""
        for _ in range(10):
            await asyncio.sleep(0)
        for host in self.hosts:
            host.read()

    async def say(self, host: Host, event: ev.Event) -> None:
        assert host.line is not None
        self.leader.heard(host.line, wire.from_event(event))
        await self.settle()

    async def lose(self, host: Host, member: str) -> None:
        host.living.remove(member)
        lost = ev.MemberLost(at=0.0, member=MemberId(member), cause=KILLED)
        host.ends.append(wire.from_event(lost))
        await self.say(host, lost)

    async def train(self) -> None:
        """m-0 on a, m-1 on b, and m-2, a warm spare."""
        await self.attend()
        for host in self.hosts:
            for member in host.living:
                await self.say(host, ev.MemberConnected(at=0.0, member=MemberId(member)))
        await self.say(self.spare, ev.MemberParked(at=0.0, member=MemberId("m-2")))
        for host in (self.a, self.b):
            member = MemberId(host.living[0])
            assert host.line is not None
            self.leader.heard(host.line, self.bequest(member))
            await self.say(host, ev.MemberEstablished(at=0.0, member=member, generation=Generation(1), twin_key="k"))
        for host in self.hosts:
            host.orders.clear()

    @staticmethod
    def bequest(member: str, again: bool = False) -> wire.Bequeathed:
        """Of m-0 or m-1, who hold the ranks of these numbers."""
        content, rank = f"left by {member}".encode(), int(member[-1])
        return wire.Bequeathed(member=member, content=content, rank=rank, world=1, again=again)

    async def recover_rank_1(self) -> None:
        """m-1 dies on b, and m-2 takes over."""
        await self.lose(self.b, "m-1")
        prepared = ev.MemberPrepared(at=0.0, member=MemberId("m-2"), generation=Generation(2), twin_key="k")
        await self.say(self.spare, prepared)
        await self.report(self.a, 2)
        for host, member in ((self.a, "m-0"), (self.spare, "m-2")):
            await self.say(host, ev.MemberResumed(at=0.0, member=MemberId(member), generation=Generation(2)))

    async def report(self, host: Host, generation: int) -> None:
        event = ev.PositionReported(
            at=0.0,
            member=MemberId(host.living[0]),
            generation=Generation(generation),
            position=Position(holds=StepNumber(7)),
            twin_key="k",
        )
        await self.say(host, event)


def play(scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def act() -> None:
        await scene(Cluster())

    asyncio.run(act())


async def change_leaders(cluster: Cluster, past: Past = NOTHING_PAST) -> Leader:
    """The old one dies without a word; the new one reads what was kept."""
    assert isinstance(cluster.state_store, MemoryStateStore)
    shared = cluster.state_store._shared
    cluster.state_store.depose()
    cluster.state_store = MemoryStateStore(shared)
    return await cluster.lead("boss:2", past)
