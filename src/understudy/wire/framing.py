"""Frames on a byte stream: four bytes of length, then one message. Oversized ones are refused before they are read."""

import socket
import struct

from understudy.errors import WireError

LIMIT = 4 * 1024 * 1024
_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size


def frame(payload: bytes) -> bytes:
    if len(payload) > LIMIT:
        raise WireError(f"a message of {len(payload)} bytes is over the limit of {LIMIT}")
    return _LENGTH.pack(len(payload)) + payload


def length_of(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > LIMIT:
        raise WireError(f"a message of {length} bytes is over the limit of {LIMIT}")
    return int(length)


def receive(connection: socket.socket) -> bytes | None:
    """Read one frame from a blocking socket; None when the other side has closed it."""
    header = _read_exactly(connection, HEADER_BYTES)
    return None if header is None else _read_exactly(connection, length_of(header))


def _read_exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = connection.recv(count - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
