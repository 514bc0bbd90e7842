"""The store's process: its port outlives it."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.agent.launching import alive

from understudy.agent.store_process import StoreProcess

HOST = "127.0.0.1"

pytestmark = pytest.mark.processes

ECHO = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    connection.sendall(" ".join([str(os.getpid()), *sys.argv[2:]]).encode())
    connection.close()
"""


async def _ask(port: int) -> tuple[int, list[str]]:
    """The process, and what it was started with."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        pid, *options = (await asyncio.wait_for(reader.read(), 20)).decode().split()
        return int(pid), options
    finally:
        writer.close()


def test_a_store_that_died_is_started_again_on_the_same_port(tmp_path: Path) -> None:
    program = tmp_path / "echo.py"
    program.write_text(ECHO)
    complaints: list[str] = []

    async def scene() -> list[int]:
        store = StoreProcess((sys.executable, str(program)), dict(os.environ), complaints.append, HOST)
        try:
            first, options = await _ask(store.port)
            assert not options
            os.kill(first, signal.SIGKILL)
            while alive(first):
                await asyncio.sleep(0.001)
            second, options = await _ask(store.port)  # waits in the queue of the socket
            assert options == ["--whole"], "it died right after its start: the sure way is taken"
        finally:
            store.close()
        return [first, second]

    first, second = asyncio.run(scene())
    assert first != second
    deadline = time.monotonic() + 10
    while alive(second) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not alive(second)
    assert len(complaints) == 1 and "SIGKILL" in complaints[0]
