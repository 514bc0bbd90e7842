"""Ports of this machine's loopback for servers that tests, claims and the benchmark start."""

import contextlib
import secrets
import socket

_OWN_PORTS = range(12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Free a moment ago. All are held until the last one is known, so that no two are equal.

    Below those that the kernel gives to connections: a client that asks again and again for a server that is down would
    sooner or later be given the server's own port, be connected to itself, and keep the server from coming back."""
    with contextlib.ExitStack() as open_sockets:
        found: list[int] = []
        while len(found) < count:
            one = open_sockets.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", secrets.choice(_OWN_PORTS)))
                found.append(int(one.getsockname()[1]))
        return found


def free_port() -> int:
    return free_ports(1)[0]
