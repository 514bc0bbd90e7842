"""Accepts the connections of an HTTP server, so that strangers that never send a request displace only each other.

A server of asyncio counts no connection before the TLS handshake is done, waits a minute for it, and gives every
connection a buffer of 256 KiB meanwhile. So a few idle clients can take all memory and descriptors of a coordinator,
and its lead with them. Here a connection counts from the moment when it is accepted, TLS begins with its first byte,
and one that is above a limit costs the oldest connection of the same address that has not sent a request. An honest
client sends one at once, and is therefore hardly ever the oldest.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from understudy.errors import SettingsError

_TLS_HANDSHAKE = b"\x16"  # the first byte of every TLS connection
_OUT_OF_DESCRIPTORS_PAUSE = 0.1  # seconds
_BACKLOG = 128
_A_MINUTE = 60.0

LEFT = "left without a word"
SILENT = "no handshake in time"
FAILED = "handshake failed"
NO_REQUEST = "no request in time"
TOO_MANY = "too many connections"
NO_DESCRIPTORS = "no descriptors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Of one port."""

    in_all: int = 512  # connections, whatever they do
    per_peer: int = 64  # connections of one address that have not sent a request
    handshake: float = 5.0  # seconds from the accepting to the end of the TLS handshake; without TLS to the first byte
    shutdown: float = 2.0  # seconds for a peer to answer the end of TLS

    def __post_init__(self) -> None:
        assert 0 < self.per_peer <= self.in_all and self.handshake > 0 and self.shutdown > 0


class Refusals:
    """Counts dropped connections by kind, and says one sentence at the end of a minute in which there were any.

    A probe that only connects and leaves (load balancers do) is counted and not spoken of.
    """

    def __init__(self, port: str, say: Callable[[str], None], count: Callable[[str], None]) -> None:
        self._port, self._say, self._count = port, say, count
        self._lately: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, kind: str) -> None:
        self._count(kind)
        if kind == LEFT:
            return
        self._lately[kind] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_A_MINUTE, self._tell)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        kinds = ", ".join(f"{kind}: {number}" for kind, number in self._lately.most_common())
        self._say(f"{self._port}: {self._lately.total()} connections were dropped in the last minute ({kinds})")
        self._lately.clear()
        self._timer = None


class Ticket:
    """One accepted connection. Its protocol reports `made`, `requested` and `gone`."""

    __slots__ = ("_acceptor", "_transport", "beginning", "peer")

    def __init__(self, acceptor: "Acceptor", peer: str) -> None:
        self._acceptor, self.peer = acceptor, peer
        self.beginning: asyncio.Task[None] | None = None
        self._transport: asyncio.BaseTransport | None = None

    def made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def requested(self) -> None:
        """From now on the connection is not dropped in favour of others."""
        self._acceptor.stop_waiting(self)

    def gone(self) -> None:
        self._acceptor.forget(self)

    def refuse(self, kind: str) -> None:
        """Only counted: the protocol ends its connection itself."""
        self._acceptor.refusals.add(kind)

    def drop(self) -> None:
        """At once, without a farewell that the peer could draw out."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()
        elif self.beginning is not None:
            self.beginning.cancel()


class Acceptor:
    """`make_protocol`: of a connection that has sent its first byte. `secure` None: no TLS."""

    def __init__(
        self,
        make_protocol: Callable[[Ticket], asyncio.BaseProtocol],
        *,
        secure: ssl.SSLContext | None,
        limits: ConnectionLimits,
        refusals: Refusals,
    ) -> None:
        self.refusals = refusals
        self._make_protocol, self._secure, self._limits = make_protocol, secure, limits
        self._open: set[Ticket] = set()
        self._waiting: dict[str, dict[Ticket, None]] = {}  # by peer, the oldest first
        self._accepting: asyncio.Task[None] | None = None

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def begin(self, listening: socket.socket) -> None:
        """The socket stays the caller's."""
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))

    async def close(self) -> None:
        """No connection is accepted any more, and those without a request are dropped."""
        self.refusals.close()
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
        for ticket in [ticket for waiting in self._waiting.values() for ticket in waiting]:
            ticket.drop()

    # -- accepting ----------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:
                self.refusals.add(NO_DESCRIPTORS)
                self._drop_of_the_busiest()
                await asyncio.sleep(_OUT_OF_DESCRIPTORS_PAUSE)
                continue
            self._take(connection, peer_of(address))
            await asyncio.sleep(0)  # one per turn of the loop: a flood must not keep the job waiting

    def _take(self, connection: socket.socket, peer: str) -> None:
        if len(self._waiting.get(peer, ())) >= self._limits.per_peer:
            self._drop_oldest(peer)
        elif len(self._open) >= self._limits.in_all and not self._drop_of_the_busiest():
            self.refusals.add(TOO_MANY)
            connection.close()
            return
        ticket = Ticket(self, peer)
        self._open.add(ticket)
        self._waiting.setdefault(peer, {})[ticket] = None
        ticket.beginning = asyncio.get_running_loop().create_task(self._begin(ticket, connection))

    async def _begin(self, ticket: Ticket, connection: socket.socket) -> None:
        """From the accepting to a protocol that serves it."""
        kind: str | None
        try:
            async with asyncio.timeout(self._limits.handshake):
                first = await _first_byte(connection)
                if not first:
                    kind = LEFT
                elif self._secure is not None and first != _TLS_HANDSHAKE:
                    kind = FAILED
                else:
                    await self._hand_over(ticket, connection)
                    return
        except TimeoutError:
            kind = SILENT
        except OSError as error:  # also every error of TLS
            kind = FAILED
            error.__traceback__ = None  # its frames hold the buffers of TLS, in a cycle
        except asyncio.CancelledError:  # dropped, and counted there. Not raised again: nothing waits for this task
            kind = None
        finally:
            ticket.beginning = None  # the task holds the ticket: a cycle, which may be collected much later
        connection.close()
        self.forget(ticket)
        if kind is not None:
            self.refusals.add(kind)

    async def _hand_over(self, ticket: Ticket, connection: socket.socket) -> None:
        loop, limits = asyncio.get_running_loop(), self._limits
        timeouts: dict[str, Any] = {}
        if self._secure is not None:
            timeouts = {"ssl_handshake_timeout": limits.handshake, "ssl_shutdown_timeout": limits.shutdown}
        await loop.connect_accepted_socket(
            lambda: self._make_protocol(ticket), connection, ssl=self._secure, **timeouts
        )

    # -- which goes first --------------------------------------------------------------------------------------------

    def _drop_of_the_busiest(self) -> bool:
        """Of the address with the most connections that wait: many addresses get their share."""
        if not self._waiting:
            return False
        self._drop_oldest(max(self._waiting, key=lambda peer: len(self._waiting[peer])))
        return True

    def _drop_oldest(self, peer: str) -> None:
        oldest = next(iter(self._waiting[peer]))
        self.forget(oldest)
        oldest.drop()
        self.refusals.add(TOO_MANY)

    def stop_waiting(self, ticket: Ticket) -> None:
        waiting = self._waiting.get(ticket.peer)
        if waiting is not None and ticket in waiting:
            del waiting[ticket]
            if not waiting:
                del self._waiting[ticket.peer]

    def forget(self, ticket: Ticket) -> None:
        self.stop_waiting(ticket)
        self._open.discard(ticket)


async def _first_byte(connection: socket.socket) -> bytes:
    """Left in its place, for the reader of the connection. Empty: the peer has gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)


def peer_of(address: tuple[Any, ...]) -> str:
    """One for a whole IPv6 network of 64 bits, which is what a single host usually has."""
    host = str(address[0]).partition("%")[0]
    if ":" not in host:
        return host
    found = ipaddress.IPv6Address(host)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))


def listen(flag: str, host: str, port: int) -> socket.socket:
    """What is wrong with the address is said with the name of its flag."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SettingsError(f"{flag} {host}:{port}: {error.strerror}") from None
    return listening
