"""A worker passes duplicates of its groups' connections to its agent: file descriptors over a Unix socket."""

import socket
from collections.abc import Sequence

import msgspec

from understudy.errors import WireError

MOST_AT_ONCE = 200  # descriptors in one packet; the kernel takes 253
_LONGEST_TEXT = 4096
_TIMEOUT = 2.0  # seconds; an agent that does not read is about to end us


class PassedConnections(msgspec.Struct, frozen=True, kw_only=True):
    """The connections of one group in `generation`."""

    member: str
    token: str
    generation: int


def address(path: str) -> str:
    """Where the agent takes them, given the path of its socket for messages."""
    return f"{path}.held"


def send(path: str, passed: PassedConnections, descriptors: Sequence[int]) -> bool:
    """False when the agent does not take them. Nothing depends on it but a quicker recovery."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(_TIMEOUT)
        try:
            line.connect(address(path))
            for start in range(0, len(descriptors), MOST_AT_ONCE):
                some = list(descriptors[start : start + MOST_AT_ONCE])
                socket.send_fds(line, [msgspec.msgpack.encode(passed)], some)
        except OSError:
            return False
    return True


def receive(line: socket.socket) -> tuple[PassedConnections, list[socket.socket]]:
    """The next packet. BlockingIOError when there is none; WireError, with everything closed, when it is malformed."""
    text, descriptors, _, _ = socket.recv_fds(line, _LONGEST_TEXT, MOST_AT_ONCE, socket.MSG_CMSG_CLOEXEC)
    connections = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        return msgspec.msgpack.decode(text, type=PassedConnections), connections
    except (msgspec.MsgspecError, ValueError) as error:
        for connection in connections:
            connection.close()
        raise WireError(f"not a packet of connections: {error}") from error
