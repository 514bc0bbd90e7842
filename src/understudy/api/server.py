"""uvicorn inside the loop that already runs: no signal handlers, no log, limits, and no way to end the job.

Connections are accepted and limited by `wire.connections`, and requests by `api.auth`."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from understudy.api.auth import CERTIFIED, App
from understudy.wire.certificates import Certificates
from understudy.wire.connections import NO_REQUEST, Acceptor, ConnectionLimits, Refusals, Ticket, listen
from understudy.wire.roles import certified_peer
from understudy.wire.transport import check_address, split_address

_CONNECTIONS = ConnectionLimits()
_ALL_INTERFACES = ("0.0.0.0", "::")
_LARGEST_HEAD = 16 * 1024
_REQUEST_TIMEOUT = 10.0  # seconds for the head of a request
_KEEP_ALIVE = 5  # seconds; every answer ends its connection, so this is for what uvicorn answers by itself
_FAREWELL = 1  # seconds for requests that are under way when the job ends


class ImpatientProtocol(H11Protocol):
    """uvicorn waits forever for the first line of a request; connections are few here, so we do not."""

    def __init__(self, ticket: Ticket, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._ticket = ticket

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state[CERTIFIED] = certified_peer(transport)  # becomes part of the scope of every request
        self._ticket.made(transport)
        self._last_seen: object = None
        self._watch = self.loop.call_later(_REQUEST_TIMEOUT, self._look)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._ticket.requested()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        self._ticket.gone()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Closed when it serves nothing and has begun nothing since the last look."""
        serves = self.cycle is not None and not self.cycle.response_complete
        if not serves and self.cycle is self._last_seen:
            if self.cycle is None:
                self._ticket.refuse(NO_REQUEST)
            self.transport.close()
            return
        self._last_seen = self.cycle
        self._watch = self.loop.call_later(_REQUEST_TIMEOUT, self._look)


class _Server(uvicorn.Server):
    """Its connections come from our acceptor, because uvicorn has no limit for a TLS handshake."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, secure: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._listening, self._secure = listening, secure
        self.acceptor: Acceptor | None = None

    def accept(self, refusals: Refusals) -> None:
        self.acceptor = Acceptor(
            lambda ticket: ImpatientProtocol(ticket, self.config, self.server_state),
            secure=self._secure,
            limits=_CONNECTIONS,
            refusals=refusals,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the job."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        assert self.acceptor is not None
        self.servers = []
        self.acceptor.begin(self._listening)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert self.acceptor is not None
        await self.acceptor.close()
        await super().shutdown(sockets)


class ApiServer:
    """`open` says what is wrong with the address; whatever goes wrong later is said, and the job goes on."""

    def __init__(self, app: App, say: Callable[[str], None], count: Callable[[str], None] = lambda _: None) -> None:
        """`count`: is given the kind of every connection that was dropped before it sent a request."""
        self._app, self._say, self._count = app, say, count
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url, self.port = "", 0

    @property
    def open_connections(self) -> int:
        """Whatever they do."""
        acceptor = None if self._server is None else self._server.acceptor
        return 0 if acceptor is None else acceptor.open_connections

    async def open(self, address: str, certificates: Certificates | None, reached_at: str = "") -> int:
        """Both sides prove their identity, or the address is of this host only. `reached_at`: the host for `url`, if
        the address is of all interfaces. Returns the port."""
        check_address("--http", address, certificates)
        host, port = split_address("--http", address)
        secure = None if certificates is None else certificates.server_context()
        listening = listen("--http", host, port)
        config = uvicorn.Config(
            self._app,
            http=ImpatientProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_FAREWELL,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
        )
        self._server = _Server(config, listening, secure)
        self._server.accept(Refusals(f"--http {address}", self._say, self._count))
        self._serving = asyncio.create_task(self._serve(self._server, listening))
        self.port = int(listening.getsockname()[1])
        named = reached_at.strip("[]") if host in _ALL_INTERFACES and reached_at else host
        shown = f"[{named}]" if ":" in named else named
        self.url = f"{'http' if certificates is None else 'https'}://{shown}:{self.port}"
        return self.port

    async def _serve(self, server: _Server, listening: socket.socket) -> None:
        try:
            await server.serve()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # uvicorn leaves by SystemExit; that must not end the job
            self._say(f"the HTTP server has ended, the job goes on: {error!r}")
        finally:
            listening.close()

    async def close(self) -> None:
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        try:
            await asyncio.wait_for(asyncio.shield(self._serving), _FAREWELL + 2.0)
        except (TimeoutError, asyncio.CancelledError):
            self._serving.cancel()
