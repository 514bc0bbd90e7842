"""What a dead process's peers see while the agent holds its connections: nothing at all, until they are told."""

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from understudy.agent import held_connections
from understudy.agent.held_connections import HeldConnections
from understudy.foundation.ids import MemberId
from understudy.wire import fd_passing

ANNA, BEN = MemberId("m-anna"), MemberId("m-ben")
PATIENCE = 30.0


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    for end in (here, there):
        end.setblocking(False)
    return here, there


@asynccontextmanager
async def holding(tmp_path: Path) -> AsyncIterator[tuple[HeldConnections, str]]:
    path = str(tmp_path / "agent")
    held = HeldConnections(path, lambda _, token: token == "right")
    try:
        yield held, path
    finally:
        held.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


def hand_over(path: str, member: MemberId, generation: int, *ends: socket.socket, token: str = "right") -> None:
    told = fd_passing.PassedConnections(member=member, token=token, generation=generation)
    assert fd_passing.send(path, told, [end.fileno() for end in ends])


def is_open(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


CHILD = """
import socket, sys
from understudy.wire import fd_passing
connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
passed = fd_passing.PassedConnections(member="m-anna", token="right", generation=1)
fd_passing.send(sys.argv[1], passed, [connection.fileno()])
print("handed over", flush=True)
sys.stdin.read()
"""


@in_a_loop
async def test_a_killed_process_does_not_break_its_connections_until_it_is_forgotten(tmp_path: Path) -> None:
    async with holding(tmp_path) as (held, path):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, path, str(listener.getsockname()[1])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            peer, _ = await asyncio.to_thread(listener.accept)
        peer.setblocking(False)
        await until(lambda: len(held) == 1)
        os.kill(child.pid, signal.SIGKILL)
        assert await asyncio.to_thread(child.wait, PATIENCE) == -signal.SIGKILL
        held.ended(ANNA, clean=False)
        peer.send(b"to nobody")
        peer.send(b"once more")
        assert is_open(peer)
        end, other = tcp_pair()
        hand_over(path, BEN, 2, end)  # the next generation is being formed
        await until(lambda: not is_open(peer))
        for each in (peer, end, other):
            each.close()


@in_a_loop
async def test_a_send_that_does_not_fit_comes_to_its_end_once_the_receiver_has_left(tmp_path: Path) -> None:
    async with holding(tmp_path) as (held, path):
        mine, peer = tcp_pair()
        hand_over(path, ANNA, 1, mine)
        await until(lambda: len(held) == 1)
        rest = bytearray(64 << 20)

        def send_some() -> bool:
            with suppress(BlockingIOError):
                del rest[: peer.send(rest)]
            return not rest

        before = 0
        while before != len(rest):  # until the kernel takes no more
            before = len(rest)
            send_some()
            await asyncio.sleep(0.05)
        held.left(ANNA, generation=1)  # not out of this one
        assert not send_some()
        held.left(ANNA, generation=2)
        await until(send_some)
        mine.close()
        peer.close()


@in_a_loop
async def test_after_a_clean_end_the_peers_see_it(tmp_path: Path) -> None:
    async with holding(tmp_path) as (held, path):
        mine, peer = tcp_pair()
        hand_over(path, ANNA, 1, mine)
        mine.close()
        assert is_open(peer)
        held.ended(ANNA, clean=True)
        assert not is_open(peer) and len(held) == 0
        peer.close()


@in_a_loop
async def test_who_lives_keeps_its_connections_when_others_form_groups(tmp_path: Path) -> None:
    async with holding(tmp_path) as (held, path):
        old, new, other = tcp_pair(), tcp_pair(), tcp_pair()
        hand_over(path, ANNA, 1, old[0])
        hand_over(path, BEN, 1, other[0])
        hand_over(path, ANNA, 2, new[0])
        await until(lambda: len(held) == 2)
        other[0].close()
        assert is_open(other[1])  # Ben has not left generation 1
        for pair in (old, new, other):
            pair[1].close()
        old[0].close()
        new[0].close()


@in_a_loop
async def test_nothing_is_held_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_connections, "_LONGEST_HOLD", 0.05)
    async with holding(tmp_path) as (held, path):
        mine, peer = tcp_pair()
        hand_over(path, ANNA, 1, mine)
        mine.close()
        held.ended(ANNA, clean=False)
        await until(lambda: not is_open(peer))
        peer.close()


@in_a_loop
async def test_strangers_and_nonsense_are_refused_and_counted(tmp_path: Path) -> None:
    async with holding(tmp_path) as (held, path):
        mine, peer = tcp_pair()
        hand_over(path, ANNA, 1, mine, token="wrong")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.connect(fd_passing.address(path))
            socket.send_fds(line, [b"nonsense"], [mine.fileno()])
        await until(lambda: held.refused == 2)
        assert len(held) == 0
        mine.close()
        assert not is_open(peer)
        peer.close()
