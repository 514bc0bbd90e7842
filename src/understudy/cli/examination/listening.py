"""`understudy doctor --listen`: waits on a spare's host until a rank's host has examined the way to it, once."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping

from understudy.cli.examination.finding import Finding, span
from understudy.cli.examination.peer_connection import (
    EXAMINATION_TIMEOUT,
    GREETING_TIMEOUT,
    PeerConnection,
    admit,
    obey,
)
from understudy.errors import SettingsError, WireError

_BACKLOG = 4


@contextlib.contextmanager
def opened(host: str, port: int) -> Iterator[socket.socket]:
    """Port 0 is a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(f"--listen {host}:{port}: {error.strerror or error}") from None
    with listener:
        yield listener


def wait_for_examination(
    listener: socket.socket,
    token: str,
    limit: float,
    versions: Mapping[str, str],
    wall: Callable[[], float] = time.time,
) -> Finding:
    """One after the other, until one has been through it all. A peer that cannot prove itself does not end the
    waiting."""
    until = time.monotonic() + limit
    refused = broken = 0
    while (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, (name, *_) = listener.accept()
        except TimeoutError:
            break
        with connection:
            try:
                line = PeerConnection(connection, GREETING_TIMEOUT)
                admit(line, token)
            except (OSError, WireError):
                refused += 1
                continue
            began = time.monotonic()
            line.extend(EXAMINATION_TIMEOUT)
            try:
                obey(line, versions, wall)
            except (OSError, WireError):
                broken += 1
                continue
        others = f"; before that {refused} refused, {broken} broke off" if refused or broken else ""
        return Finding(f"examined from {name} in {span(time.monotonic() - began)}{others}", good=True)
    return Finding(
        f"no peer has examined this host within {span(limit)} ({refused} refused, {broken} broke off)",
        good=False,
        wrong=True,
        advice="no peer came through: look at the address, at firewalls, and at the token on both sides",
    )
