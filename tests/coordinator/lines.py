"""A real coordinator service on a free port of this host, and agents by hand that say what a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.coordinator.acting import RememberingJournal

from understudy.coordinator.leader import Leader
from understudy.coordinator.service import MAX_HOSTS, Service
from understudy.coordinator.state_store import MemoryStateStore, SharedMemoryState
from understudy.foundation.clock import SystemClock
from understudy.protocol import events as ev
from understudy.protocol.policy import Policy
from understudy.wire import host_messages as wire
from understudy.wire import message_auth, transport
from understudy.wire.certificates import Certificates
from understudy.wire.versions import PROTOCOL

TOKEN = "a token of sixteen letters or more"
# Guests of these tests come and go, and on a busy machine a world that they were to be part of is begun again often.
POLICY = Policy(
    world_size=2,
    hosts=2,
    host_patience=0.2,
    takeover_patience=1.0,
    resend_every=30.0,
    max_start_overs=1_000_000,
    max_deaths_per_step=1_000_000,
)
LIMIT = 30.0
_Kind = TypeVar("_Kind")


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(LIMIT):
            await story()

    asyncio.run(whole())


async def until(true: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {seconds:g} s for: {what}") from None


@dataclass
class Place:
    """Where one coordinator can be reached."""

    service: Service
    port: int
    state_store: MemoryStateStore
    certificates: Path | None = None
    leader: Leader | None = None
    journal: RememberingJournal = field(default_factory=RememberingJournal)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def leading(self) -> Leader:
        assert self.leader is not None
        return self.leader

    async def lead(self) -> Leader:
        term = await self.state_store.lead(self.address)
        self.leader = Leader(term, state_store=self.state_store, clock=SystemClock(), journals=(self.journal,))
        self.service.leader, self.service.leads = self.leader, self.address
        await self.leader.begin()
        return self.leader


@contextlib.asynccontextmanager
async def coordinator(
    *,
    shared: SharedMemoryState | None = None,
    certificates: Path | None = None,
    leads: bool = True,
    greeting_limit: float = 10.0,
    max_hosts: int = MAX_HOSTS,
) -> AsyncIterator[Place]:
    service = Service("job", TOKEN, greeting_limit=greeting_limit)
    read = None if certificates is None else Certificates.read(certificates)
    place = Place(service, await service.open("127.0.0.1:0", read, max_hosts), MemoryStateStore(shared))
    try:
        if leads:
            await place.lead()
        yield place
    finally:
        await place.state_store.close()
        await service.close()


def greeting(host: str = "a", **changes: Any) -> wire.Attend:
    plain: dict[str, Any] = {
        "job": "job",
        "host": host,
        "ranks": 1,
        "spares": 1,
        "place": None,
        "store": "127.0.0.1:1",
        "term": 0,
        "members": [],
        "ends": [],
        "settings": msgspec.to_builtins(POLICY),
        "protocol": PROTOCOL,
    }
    return wire.Attend(**{**plain, **changes})


@dataclass
class Agent:
    """One stream, by hand."""

    stream: message_auth.AuthenticatedStream
    channel: Any

    async def say(self, message: wire.FromHost) -> None:
        await self.stream.write(wire.encode(message))

    async def tell(self, event: ev.Event) -> None:
        await self.say(wire.from_event(event))

    async def hear(self, kind: type[_Kind]) -> _Kind:
        """The next message of this kind, or the command in an order; others are passed over."""
        while True:
            data = await asyncio.wait_for(self.stream.read(), 10.0)
            assert data is not None, f"the line ended before {kind.__name__} came"
            message = wire.decode_to_host(data)
            for heard in (message, message.command if isinstance(message, wire.Order) else None):
                if isinstance(heard, kind):
                    return heard

    async def ended_or_welcomed(self) -> str:
        """What becomes of a greeting: empty if it is answered, else the status with which the line ended."""
        with contextlib.suppress(transport.grpc_module().aio.AioRpcError):
            if await asyncio.wait_for(self.stream.read(), 10.0) is not None:
                return ""
        return str((await self.call.code()).name)

    async def ended(self) -> str:
        """Waits for the end of the line; returns the name of its status."""
        with contextlib.suppress(transport.grpc_module().aio.AioRpcError):
            while await asyncio.wait_for(self.stream.read(), 10.0) is not None:
                pass
        code = await self.call.code()
        return str(code.name)

    @property
    def call(self) -> Any:
        return self.stream._stream


@contextlib.asynccontextmanager
async def line_to(
    place: Place, *, token: str = TOKEN, certificates: Path | Certificates | None = None
) -> AsyncIterator[Agent]:
    read = Certificates.read(certificates) if isinstance(certificates, Path) else certificates
    channel = transport.open_channel(place.address, read)
    try:
        yield Agent(await message_auth.call(channel.stream_stream(transport.PATH), token, 10.0), channel)
    finally:
        await channel.close()


@contextlib.asynccontextmanager
async def attending(place: Place, host: str = "a", **changes: Any) -> AsyncIterator[Agent]:
    async with line_to(place) as agent:
        await agent.say(greeting(host, **changes))
        await agent.hear(wire.Welcome)
        yield agent
