"""Who may speak to the agent, and what happens to everything else."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from understudy.agent.connections import WorkerConnections
from understudy.foundation.ids import Generation, MemberId
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.reasons import Code, because
from understudy.wire import framing
from understudy.wire import messages as msg

ALICE = MemberId("m-0")
PARKED = ev.MemberParked(at=ev.UNTIMED, member=ALICE)


def release(generation: int) -> cmd.ReleaseMembers:
    return cmd.ReleaseMembers(generation=Generation(generation), members=(ALICE,))


class Harness:
    """Connections with everything that they delivered."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "s")
        self.heard: list[tuple[MemberId, msg.FromWorker]] = []
        self.gone: list[MemberId] = []
        self.connections = WorkerConnections(
            self.path, deliver=lambda member, message: self.heard.append((member, message)), gone=self.gone.append
        )
        self.token = self.connections.expect(ALICE)

    def hello(self, **changes: Any) -> bytes:
        fields: dict[str, Any] = {"member": ALICE, "token": self.token, "pid": 1} | changes
        return framing.frame(msg.encode(msg.Hello(**fields)))

    @asynccontextmanager
    async def connected(self, *first: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.writelines(first)
        await writer.drain()
        try:
            yield reader, writer
        finally:
            writer.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


def play(path: Path, scene: Callable[[Harness], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        harness = Harness(path)
        try:
            await scene(harness)
        finally:
            harness.connections.close()

    asyncio.run(run())


def test_a_member_says_hello_and_both_sides_speak(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        parked = framing.frame(msg.encode(PARKED))
        async with harness.connected(harness.hello(), parked[:3]) as (reader, writer):
            writer.write(parked[3:])
            await until(lambda: len(harness.heard) == 2)
            assert [type(message) for _, message in harness.heard] == [msg.Hello, ev.MemberParked]
            assert harness.connections.send(ALICE, release(4))
            data = await reader.readexactly(framing.length_of(await reader.readexactly(framing.HEADER_BYTES)))
            assert msg.decode_from_agent(data) == release(4)
        await until(lambda: harness.gone == [ALICE])
        assert not harness.connections.send(ALICE, release(5))

    play(tmp_path, scene)


@pytest.mark.parametrize("changes", [{"token": "0" * 32}, {"token": "ä"}, {"member": "m-9"}])
def test_a_wrong_token_or_an_unknown_member_is_refused(tmp_path: Path, changes: dict[str, str]) -> None:
    async def scene(harness: Harness) -> None:
        async with harness.connected(harness.hello(**changes)) as (reader, _):
            assert await reader.read() == b"", "the connection is closed"
        assert harness.heard == [] and harness.connections.refused == 1

    play(tmp_path, scene)


def test_who_does_not_begin_with_hello_is_refused(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        async with harness.connected(framing.frame(msg.encode(PARKED))) as (reader, _):
            assert await reader.read() == b""
        assert harness.heard == [] and harness.connections.refused == 1

    play(tmp_path, scene)


GARBAGE = {
    "not a message": framing.frame(b"\xc1 nonsense"),
    "an unknown type": framing.frame(b"\x81\xa4type\xa7Destroy"),
    "a wrong field": framing.frame(b"\x83\xa4type\xa5Hello\xa6member\x05\xa3pid\xa1x"),
    "an oversized frame": struct.pack(">I", 2**32 - 1),
    "an empty frame": framing.frame(b""),
    "bytes that are no text": framing.frame(b"\x81\xa4type\xa2\xff\xfe"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_closes_the_connection_and_nothing_else(tmp_path: Path, garbage: bytes) -> None:
    async def scene(harness: Harness) -> None:
        async with harness.connected(harness.hello()), harness.connected(garbage) as (reader, _):
            assert await reader.read() == b""
            assert harness.connections.malformed == 1
            await until(lambda: harness.heard)
            assert harness.gone == [], "the other connection lives on"

    play(tmp_path, scene)


def test_a_second_hello_is_malformed(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        async with harness.connected(harness.hello(), harness.hello()) as (reader, _):
            assert await reader.read() == b""
        assert harness.connections.malformed == 1

    play(tmp_path, scene)


def test_a_member_speaks_for_itself_only(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        other = ev.MemberFinished(at=ev.UNTIMED, member=MemberId("m-1"), generation=Generation(1))
        async with harness.connected(harness.hello(), framing.frame(msg.encode(other))) as (reader, _):
            assert await reader.read() == b""
        assert [type(message) for _, message in harness.heard] == [msg.Hello] and harness.connections.malformed == 1

    play(tmp_path, scene)


def test_a_member_tells_nothing_that_only_its_agent_can_know(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        end = ev.MemberLost(at=ev.UNTIMED, member=ALICE, cause=Cause(kind=CauseKind.EXIT, detail="a lie"))
        async with harness.connected(harness.hello(), framing.frame(msg.encode(end))) as (reader, _):
            assert await reader.read() == b""
        assert [type(message) for _, message in harness.heard] == [msg.Hello] and harness.connections.malformed == 1

    play(tmp_path, scene)


def test_a_member_that_connects_again_replaces_its_old_connection(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        async with harness.connected(harness.hello()) as (old, _):
            await until(lambda: len(harness.heard) == 1)
            async with harness.connected(harness.hello()) as (new, _):
                assert await old.read() == b""
                assert harness.gone == []
                harness.connections.send(ALICE, release(1))
                assert await new.readexactly(framing.HEADER_BYTES)

    play(tmp_path, scene)


def test_nobody_speaks_for_a_process_that_has_ended(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        harness.connections.forget(ALICE)
        async with harness.connected(harness.hello()) as (reader, _):
            assert await reader.read() == b""
        assert harness.connections.refused == 1

    play(tmp_path, scene)


def test_last_words_are_delivered_before_the_news_of_the_end(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        line = socket.socket(socket.AF_UNIX)
        line.connect(harness.path)
        line.sendall(harness.hello())
        await until(lambda: harness.heard)
        line.sendall(framing.frame(msg.encode(msg.Note(text="last words"))))
        line.close()
        harness.connections.drain(ALICE)  # without giving the loop a turn
        assert harness.heard[-1] == (ALICE, msg.Note(text="last words"))

    play(tmp_path, scene)


def test_even_who_has_not_been_let_in_yet_has_last_words(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        line = socket.socket(socket.AF_UNIX)
        line.connect(harness.path)
        line.sendall(harness.hello() + framing.frame(msg.encode(msg.Note(text="last words"))))
        line.close()
        harness.connections.drain(ALICE)
        assert harness.heard[-1] == (ALICE, msg.Note(text="last words"))

    play(tmp_path, scene)


def test_a_member_that_does_not_read_blocks_nobody_and_is_cut_off(tmp_path: Path) -> None:
    async def scene(harness: Harness) -> None:
        async with harness.connected(harness.hello()):
            await until(lambda: harness.heard)
            big = cmd.AbandonGeneration(
                generation=Generation(1), members=(ALICE,), reason=because(Code.TOLD, text="x" * 1_000_000)
            )
            for _ in range(12):
                harness.connections.send(ALICE, big)
            assert harness.gone == [ALICE]

    play(tmp_path, scene)
