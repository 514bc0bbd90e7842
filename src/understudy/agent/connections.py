"""The agent's Unix socket: which processes may speak, and frames in both directions.

Everything that arrives is untrusted until it has been decoded. A connection that says something malformed, or speaks
for another member, is closed and counted, and nothing else happens. Neither reading nor writing ever blocks the loop.

Knows: sockets and frames. Does not know: what messages mean. Called by the supervisor.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable

import msgspec

from understudy.errors import WireError
from understudy.foundation.ids import MemberId
from understudy.protocol.events import Event
from understudy.wire.framing import HEADER_BYTES, LIMIT, frame, length_of
from understudy.wire.messages import FromAgent, FromWorker, Hello, decode_from_worker, encode

_READ_BYTES = 1 << 16
_UNSENT_LIMIT = 2 * LIMIT  # a member that does not read is cut off here; it will connect again or be ended


class WorkerConnections:
    """`deliver` gets every message of an admitted member (its Hello first), `gone` the end of its connection."""

    def __init__(
        self,
        path: str,
        *,
        deliver: Callable[[MemberId, FromWorker], None],
        gone: Callable[[MemberId], None],
    ) -> None:
        self.refused = 0
        self.malformed = 0
        self._path = path
        self._deliver, self._gone = deliver, gone
        self._tokens: dict[MemberId, str] = {}
        self._peers: set[_Peer] = set()
        self._by_member: dict[MemberId, _Peer] = {}
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def expect(self, member: MemberId) -> str:
        """Make the token with which this member will prove its identity."""
        token = secrets.token_hex(16)
        self._tokens[member] = token
        return token

    def forget(self, member: MemberId) -> None:
        """The process has ended: no other may speak in its name any more."""
        self._tokens.pop(member, None)
        peer = self._by_member.pop(member, None)
        if peer is not None:
            self._close(peer)

    def drain(self, member: MemberId) -> None:
        """Deliver what has arrived already: a process's last words come before the news of its end."""
        while self._accept():
            pass
        for peer in [peer for peer in self._peers if peer.member in (member, None)]:
            self._readable(peer)

    def send(self, member: MemberId, message: FromAgent) -> bool:
        """False when the member has no connection."""
        peer = self._by_member.get(member)
        if peer is None:
            return False
        peer.unsent += frame(encode(message))
        self._writable(peer)
        if len(peer.unsent) > _UNSENT_LIMIT:
            self._close(peer)
        return True

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for peer in list(self._peers):
            self._close(peer)
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _accept(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False
        connection.setblocking(False)
        peer = _Peer(connection)
        self._peers.add(peer)
        self._loop.add_reader(connection.fileno(), self._readable, peer)
        return True

    def _readable(self, peer: "_Peer") -> None:
        while peer in self._peers:
            try:
                data = peer.connection.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close(peer)
                return
            peer.received += data
            self._take_frames(peer)

    def _take_frames(self, peer: "_Peer") -> None:
        try:
            while peer in self._peers and (payload := peer.next_frame()) is not None:
                self._take(peer, _decode(payload))
        except WireError:
            self.malformed += 1
            self._close(peer)

    def _take(self, peer: "_Peer", message: FromWorker) -> None:
        if peer.member is not None:
            if isinstance(message, Hello):
                raise WireError("a second Hello on one connection")
            if isinstance(message, Event) and message.member != peer.member:
                raise WireError(f"{peer.member} speaks for another member")
            self._deliver(peer.member, message)
            return
        if not isinstance(message, Hello) or not self.is_member(message.member, message.token):
            self.refused += 1
            self._close(peer)
            return
        peer.member = MemberId(message.member)
        former = self._by_member.get(peer.member)
        self._by_member[peer.member] = peer
        if former is not None:
            self._close(former)
        self._deliver(peer.member, message)

    def is_member(self, member: str, token: str) -> bool:
        expected = self._tokens.get(MemberId(member))
        return expected is not None and secrets.compare_digest(expected.encode(), token.encode())

    def _writable(self, peer: "_Peer") -> None:
        try:
            sent = peer.connection.send(peer.unsent)
            del peer.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        if peer.unsent and not peer.writing:
            peer.writing = True
            self._loop.add_writer(peer.connection.fileno(), self._writable, peer)
        elif not peer.unsent and peer.writing:
            peer.writing = False
            self._loop.remove_writer(peer.connection.fileno())

    def _close(self, peer: "_Peer") -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._loop.remove_reader(peer.connection.fileno())
        self._loop.remove_writer(peer.connection.fileno())
        peer.connection.close()
        if peer.member is not None and self._by_member.get(peer.member) is peer:
            del self._by_member[peer.member]
            self._gone(peer.member)


def _decode(payload: bytes) -> FromWorker:
    try:
        return decode_from_worker(payload)
    except (msgspec.MsgspecError, ValueError) as error:  # a text that is no UTF-8 is a ValueError
        raise WireError(f"not a message: {error}") from error


class _Peer:
    """One connection, before and after its Hello."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.member: MemberId | None = None
        self.received = bytearray()
        self.unsent = bytearray()
        self.writing = False

    def next_frame(self) -> bytes | None:
        if len(self.received) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + length_of(bytes(self.received[:HEADER_BYTES]))
        if len(self.received) < end:
            return None
        payload = bytes(self.received[HEADER_BYTES:end])
        del self.received[:end]
        return payload
