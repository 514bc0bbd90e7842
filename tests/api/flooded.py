"""A program for `test_floods`: the API of a small job over TLS, and the probes beside it, in a process of their own."""

import asyncio
import resource
import sys
from pathlib import Path

from tests.api.stage import Stage

from understudy.api.server import ApiServer
from understudy.coordinator.health import HealthServer
from understudy.wire.certificates import Certificates


async def serve(folder: Path, kind: str) -> None:
    certificates = Certificates.read(folder / "certs" / "boss")
    stage = Stage(folder)
    stage.begin()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if kind == "api":
        server = ApiServer(stage.api.app, say, stage.api.metrics.refused)
        port = await server.open("127.0.0.1:0", certificates)
    else:
        port = await HealthServer({"/health": lambda: {"healthy": True}}, say=say).open("127.0.0.1:0", certificates)
    probes = HealthServer({"/health": lambda: {"healthy": True}}, flag="--health", say=say)
    print(port, await probes.open_unauthenticated("127.0.0.1:0"), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
