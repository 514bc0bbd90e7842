"""`--health HOST:PORT`: whether this process lives and is of use, for orchestrators, whose probes have no certificate.

A port of its own: what happens there does not reach clients of the API, and a flood of the API does not make probes
fail. The answers tell nothing about the job, so every client may have them.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from understudy.coordinator.health import HealthServer, NotReady


@contextlib.asynccontextmanager
async def serving_probes(
    address: str | None, is_ready: Callable[[], bool], say: Callable[[str], None]
) -> AsyncIterator[None]:
    """`address` None: nowhere. `/health` is 200 while the process answers; `/ready` is 503 while `is_ready` says no."""
    if address is None:
        yield
        return

    def ready() -> Mapping[str, object]:
        if not is_ready():
            raise NotReady({"ready": False})
        return {"ready": True}

    server = HealthServer({"/health": lambda: {"healthy": True}, "/ready": ready}, flag="--health", say=say)
    port = await server.open_unauthenticated(address)
    say(f"/health and /ready for probes on port {port}")
    try:
        yield
    finally:
        await server.close()
