"""Who is accepted, who is dropped for whom, and that nothing of the dropped ones stays."""

import asyncio
import contextlib
import gc
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from understudy.wire import connections
from understudy.wire.certificates import Certificates
from understudy.wire.connections import (
    FAILED,
    LEFT,
    SILENT,
    TOO_MANY,
    Acceptor,
    ConnectionLimits,
    Refusals,
    Ticket,
    listen,
    peer_of,
)
from understudy.wire.issuing import make_set

pytestmark = pytest.mark.timeout(60)
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(asyncio.Protocol):
    """What it gets is its request, and is sent back."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.ticket.made(transport)

    def data_received(self, data: bytes) -> None:
        self.ticket.requested()
        self.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.ticket.gone()


class Place:
    def __init__(self, limits: ConnectionLimits, secure: ssl.SSLContext | None = None) -> None:
        self.counted: Counter[str] = Counter()
        self.said: list[str] = []
        self.refusals = Refusals("--http here", self.said.append, self.count)
        self.acceptor = Acceptor(Echo, secure=secure, limits=limits, refusals=self.refusals)

    def count(self, kind: str) -> None:
        self.counted[kind] += 1

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Place"]:
        with contextlib.closing(listen("--http", "127.0.0.1", 0)) as listening:
            self.acceptor.begin(listening)
            self.port = listening.getsockname()[1]
            async with asyncio.timeout(20.0):
                yield self
            await self.acceptor.close()

    async def connect(self, source: str = "127.0.0.1") -> Pipe:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))


async def is_served(pipe: Pipe) -> bool:
    reader, writer = pipe
    writer.write(b"x")
    with contextlib.suppress(ConnectionError):
        return await reader.read(1) == b"x"
    return False


def test_the_oldest_of_an_address_without_a_request_makes_room() -> None:
    async def story() -> None:
        async with Place(ConnectionLimits(in_all=100, per_peer=3)).open() as place:
            working = await place.connect()
            assert await is_served(working)
            idle = [await place.connect() for _ in range(4)]
            assert await is_served(await place.connect("127.0.0.2"))
            assert await is_served(working), "who has sent a request is not dropped for others"
            assert [await is_served(pipe) for pipe in idle] == [False, True, True, True]
            assert place.counted == {TOO_MANY: 1}

    asyncio.run(story())


def test_when_all_places_are_taken_the_busiest_address_gives_one() -> None:
    async def story() -> None:
        async with Place(ConnectionLimits(in_all=4, per_peer=3)).open() as place:
            busy = [await place.connect("127.0.0.2") for _ in range(3)]
            other = await place.connect("127.0.0.3")
            third = await place.connect()
            assert await is_served(third) and await is_served(other) and not await is_served(busy[0])
            assert await is_served(busy[1]) and await is_served(busy[2])
            assert not await is_served(await place.connect()), "all four are being served"
            assert place.counted == {TOO_MANY: 2} and place.acceptor.open_connections == 4

    asyncio.run(story())


def test_who_says_nothing_is_not_waited_for() -> None:
    async def story() -> None:
        async with Place(ConnectionLimits(handshake=0.05)).open() as place:
            reader, _ = await place.connect()
            assert await reader.read() == b""
            _, writer = await place.connect()
            writer.close()
            while place.counted != {SILENT: 1, LEFT: 1}:
                await asyncio.sleep(0.01)
            assert place.acceptor.open_connections == 0

    asyncio.run(story())


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_nothing_stays_of_handshakes_that_failed(tmp_path: Path) -> None:
    """asyncio holds 256 KiB for each of them. If that had to be collected, a flood would be faster."""
    make_set(tmp_path, ["boss"])
    secure = Certificates.read(tmp_path / "boss").server_context()

    async def story() -> None:
        async with Place(ConnectionLimits(per_peer=2, handshake=0.3), secure).open() as place:
            for word in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05" + b"\xff" * 5, b"\x16\x03\x01\x02\x00\x01"):
                pipes = [await place.connect() for _ in range(5)]
                for _, writer in pipes:
                    writer.write(word)
                for reader, writer in pipes:
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
                    writer.close()
            while place.acceptor.open_connections:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert place.counted[FAILED] + place.counted[SILENT] + place.counted[TOO_MANY] == 15
            assert place.counted[SILENT] == 2
            assert not [each for each in gc.get_objects() if type(each) is SSLProtocol]

    asyncio.run(story())


def test_one_sentence_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_A_MINUTE", 0.05)

    async def story() -> None:
        place = Place(ConnectionLimits())
        for kind in (SILENT, SILENT, FAILED, LEFT):
            place.refusals.add(kind)
        await asyncio.sleep(0.15)
        place.refusals.add(LEFT)
        await asyncio.sleep(0.1)
        assert place.said == [
            "--http here: 3 connections were dropped in the last minute (no handshake in time: 2, handshake failed: 1)"
        ]
        assert place.counted[LEFT] == 2

    asyncio.run(story())


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.1", 77), "10.0.0.1"),
        (("::ffff:10.0.0.1", 77, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 77, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 77, 0, 2), "fe80::"),
    ],
)
def test_one_network_is_one_peer(address: tuple[object, ...], peer: str) -> None:
    assert peer_of(address) == peer
