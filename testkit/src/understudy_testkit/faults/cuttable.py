"""A way between hosts and their coordinator that can be cut: all connections on it break at once, and new ones are let
through. For what happens only when a line is made again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class CuttableWay:
    """`address`: where it is entered; it leads to `target`. Both are HOST:PORT of this host."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._ends: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def cut(self) -> int:
        """Returns how many connections broke."""
        ends, self._ends = self._ends, set()
        for end in ends:
            end.transport.abort()
        return len(ends) // 2

    async def end(self) -> None:
        """When no connection is let in any more: all connections have broken, and nothing is left behind."""
        while self._carrying:
            self.cut()
            await asyncio.wait(self._carrying, timeout=0.1)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        with contextlib.suppress(OSError):
            onward = await asyncio.open_connection(self._host, self._port)
            both = {writer, onward[1]}
            self._ends |= both
            try:
                await asyncio.gather(_pump(reader, onward[1]), _pump(onward[0], writer))
            finally:
                self._ends -= both
                onward[1].close()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either end has gone; the other one is told."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def cuttable_way(target: str) -> AsyncIterator[CuttableWay]:
    way = CuttableWay(target)
    server = await way.open()
    try:
        yield way
    finally:
        server.close()
        await way.end()
