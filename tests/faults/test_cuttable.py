"""A way that can be cut: what goes over it, what breaks, and who gets through afterwards."""

import asyncio
import contextlib

from understudy_testkit.faults.cuttable import cuttable_way


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


def test_connections_break_at_once_and_new_ones_get_through() -> None:
    async def story() -> None:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with cuttable_way(target) as way:
            port = int(way.address.rpartition(":")[2])
            first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in (first, second):
                writer.write(b"word")
                assert await reader.readexactly(4) == b"word"
            assert way.cut() == 2 and way.cut() == 0
            for reader, _ in (first, second):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"
        server.close()

    asyncio.run(asyncio.wait_for(story(), 20.0))
