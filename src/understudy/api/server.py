"""uvicorn inside the loop that already runs: no signal handlers, no log, limits, and no way to end the job."""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from understudy.api.gate import App
from understudy.errors import SettingsError
from understudy.files.private import write_private
from understudy.wire.certificates import Certificates
from understudy.wire.transport import check_address, split_address

ADDRESS_FILE = "http.json"
_MOST_CONNECTIONS = 256
_LARGEST_HEAD = 16 * 1024
_REQUEST_LIMIT = 10.0  # seconds for the head of a request
_FAREWELL = 1  # seconds for requests that are under way when the job ends
_DISK_LIMIT = 1.0  # seconds for a small file


class ImpatientProtocol(H11Protocol):
    """uvicorn waits forever for the first line of a request; connections are few here, so we do not."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._last_seen: object = None
        self._watch = self.loop.call_later(_REQUEST_LIMIT, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Closed when it serves nothing and has begun nothing since the last look."""
        serves = self.cycle is not None and not self.cycle.response_complete
        if not serves and self.cycle is self._last_seen:
            self.transport.close()
            return
        self._last_seen = self.cycle
        self._watch = self.loop.call_later(_REQUEST_LIMIT, self._look)


class _Config(uvicorn.Config):
    """TLS as everywhere else in the job, and not as uvicorn would make it once."""

    secure: ssl.SSLContext | None = None

    def load(self) -> None:
        super().load()
        self.ssl = self.secure


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the job."""
        yield


class ApiServer:
    """`open` says what is wrong with the address; whatever goes wrong later is said, and the job goes on."""

    def __init__(self, app: App, say: Callable[[str], None]) -> None:
        self._app, self._say = app, say
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url, self.port = "", 0

    async def open(self, address: str, certificates: Certificates | None) -> int:
        """Both sides prove who they are, or the address is of this host only. Returns the port."""
        check_address("--http", address, certificates)
        host, port = split_address("--http", address)
        listening = _listen(host, port)
        config = _Config(
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
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_FAREWELL,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
        )
        config.secure = None if certificates is None else certificates.server_context()
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._serve(self._server, listening))
        self.port = int(listening.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if certificates is None else 'https'}://{shown}:{self.port}"
        return self.port

    async def _serve(self, server: _Server, listening: socket.socket) -> None:
        try:
            await server.serve(sockets=[listening])
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise SettingsError(f"--http {host}:{port}: {error.strerror}") from None
    return listening


# -- so that other commands find it -----------------------------------------------------------------------------------


def write_address(run_dir: Path, url: str) -> None:
    """Renamed into its place, so that nobody reads half of it."""
    text = json.dumps({"url": url, "pid": os.getpid()}) + "\n"
    new = run_dir / f".{ADDRESS_FILE}.{os.getpid()}"

    def write() -> None:
        with contextlib.suppress(OSError):  # only a convenience: `--api` does without it
            write_private(new, text.encode())
            new.replace(run_dir / ADDRESS_FILE)

    _without_waiting_for_the_disk(write)


def remove_address(run_dir: Path, url: str) -> None:
    """Unless another one has written its own there."""
    file = run_dir / ADDRESS_FILE

    def remove() -> None:
        with contextlib.suppress(OSError, ValueError):
            if json.loads(file.read_text()).get("url") == url:
                file.unlink()

    _without_waiting_for_the_disk(remove)


def _without_waiting_for_the_disk(act: Callable[[], None]) -> None:
    """For as long as a disk that works may take, and no longer: the loop that serves the job is waiting."""
    acting = threading.Thread(target=act, name="understudy-address", daemon=True)
    acting.start()
    acting.join(_DISK_LIMIT)
