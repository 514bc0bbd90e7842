"""The connection between two doctors: authentication, what may be asked on it, and how much.

Both sides give a nonce and prove with it that they know the token (HMAC); the token itself never travels, and the side
that waits proves nothing to a peer that has not. Then one side asks and the other obeys. A request is five bytes.
Nothing that arrives is kept, but for a time, a short table of versions, and a count.

Every wait ends at the line's deadline. Errors are `OSError` (the line broke, or time is over) and `WireError`.
"""

import enum
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping

import msgspec

from understudy.errors import WireError

LARGEST_ROUND = 256 << 20
"""Bytes that may be asked for at once."""
MOST_BYTES = 8 << 30
"""In one examination, both ways together."""
MOST_REQUESTS = 1000
EXAMINATION_TIMEOUT = 30.0
"""Seconds for one whole examination."""
GREETING_TIMEOUT = 3.0
"""Seconds in which a peer that connects must have proven itself."""

_GREETING = b"understudy doctor 1\n"
_NONCE, _CODE = 32, 32
_REQUEST = struct.Struct(">cI")
_TIME = struct.Struct(">d")
_LENGTH = struct.Struct(">H")
_LONGEST_TABLE = 4096
_BLOCK = os.urandom(1 << 20)  # a link that compresses gains nothing from it
_DONE = b"."


class PeerRequest(enum.Enum):
    TIME = b"t"  # what the wall clock says
    VERSIONS = b"v"
    TAKE = b"u"  # so many bytes follow; say when they are there
    GIVE = b"d"  # send so many bytes
    BYE = b"q"


class PeerConnection:
    def __init__(self, connection: socket.socket, limit: float) -> None:
        self._socket, self._deadline = connection, time.monotonic() + limit
        self._scrap = bytearray(1 << 20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def extend(self, limit: float) -> None:
        self._deadline = time.monotonic() + limit

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for this examination is over")
        self._socket.settimeout(left)

    def send(self, data: bytes | memoryview) -> None:
        self._wait()
        self._socket.sendall(data)

    def take(self, count: int) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            self._wait()
            part = self._socket.recv(count - len(taken))
            if not part:
                raise ConnectionResetError("the other side closed the line")
            taken += part
        return bytes(taken)

    def drop(self, count: int) -> None:
        """Read so many bytes and forget them."""
        while count > 0:
            self._wait()
            got = self._socket.recv_into(self._scrap, min(count, len(self._scrap)))
            if not got:
                raise ConnectionResetError("the other side closed the line")
            count -= got

    def pour(self, count: int) -> None:
        """Send so many bytes, whatever they are."""
        block = memoryview(_BLOCK)
        while count > 0:
            self.send(block[:count])
            count -= min(count, len(block))


def _code(token: str, speaker: bytes, of_asker: bytes, of_waiter: bytes) -> bytes:
    key = hmac.digest(token.encode(), _GREETING, "sha256")
    return hmac.digest(key, speaker + of_asker + of_waiter, "sha256")


# -- the side that asks -----------------------------------------------------------------------------------------------


def introduce(line: PeerConnection, token: str) -> None:
    """Prove ourselves, and have the other side do so."""
    opening = line.take(len(_GREETING) + _NONCE)
    if not opening.startswith(_GREETING):
        raise WireError("another program answers there")
    theirs, own = opening[len(_GREETING) :], secrets.token_bytes(_NONCE)
    line.send(own + _code(token, b"asks", own, theirs))
    try:
        proof = line.take(_CODE)
    except ConnectionError:
        raise WireError("it refuses us: its token is another one", kind="unauthorised") from None
    if not hmac.compare_digest(proof, _code(token, b"waits", own, theirs)):
        raise WireError("it does not know the token", kind="unauthorised")


def ask_time(line: PeerConnection) -> float:
    line.send(_REQUEST.pack(PeerRequest.TIME.value, 0))
    (wall,) = _TIME.unpack(line.take(_TIME.size))
    return float(wall)


def ask_versions(line: PeerConnection) -> dict[str, str]:
    line.send(_REQUEST.pack(PeerRequest.VERSIONS.value, 0))
    (length,) = _LENGTH.unpack(line.take(_LENGTH.size))
    if length > _LONGEST_TABLE:
        raise WireError(f"a table of {length} bytes")
    try:
        return msgspec.json.decode(line.take(length), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise WireError(f"not a table of versions: {error}") from None


def send_round(line: PeerConnection, count: int) -> None:
    line.send(_REQUEST.pack(PeerRequest.TAKE.value, count))
    line.pour(count)
    line.take(len(_DONE))


def fetch_round(line: PeerConnection, count: int) -> None:
    line.send(_REQUEST.pack(PeerRequest.GIVE.value, count))
    line.drop(count)


def say_goodbye(line: PeerConnection) -> None:
    line.send(_REQUEST.pack(PeerRequest.BYE.value, 0))


# -- the side that waits ----------------------------------------------------------------------------------------------


def admit(line: PeerConnection, token: str) -> None:
    """Raises for a peer that does not prove itself; nothing is told to it."""
    own = secrets.token_bytes(_NONCE)
    line.send(_GREETING + own)
    answer = line.take(_NONCE + _CODE)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _code(token, b"asks", theirs, own)):
        raise WireError("it does not know the token", kind="unauthorised")
    line.send(_code(token, b"waits", theirs, own))


def obey(line: PeerConnection, versions: Mapping[str, str], wall: Callable[[], float]) -> None:
    """Answer until the other side says goodbye."""
    left = MOST_BYTES
    for _ in range(MOST_REQUESTS):
        letter, count = _REQUEST.unpack(line.take(_REQUEST.size))
        try:
            request = PeerRequest(letter)
        except ValueError:
            raise WireError(f"no such request: {letter!r}") from None
        left -= count
        if count > LARGEST_ROUND or left < 0:
            raise WireError(f"{count} bytes are more than is given", kind="oversized")
        match request:
            case PeerRequest.TIME:
                line.send(_TIME.pack(wall()))
            case PeerRequest.VERSIONS:
                table = msgspec.json.encode(dict(versions))
                line.send(_LENGTH.pack(len(table)) + table)
            case PeerRequest.TAKE:
                line.drop(count)
                line.send(_DONE)
            case PeerRequest.GIVE:
                line.pour(count)
            case PeerRequest.BYE:
                return
    raise WireError("it asks without end", kind="oversized")
