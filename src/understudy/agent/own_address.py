"""Under which address the other hosts of a job reach this one: the one from which it reaches its coordinators.

The name of a host is often an address of the loopback interface (127.0.1.1 on Debian), or one of a network that the
others are not on. The kernel says which of its addresses it would use for the way to a coordinator; nothing is sent.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence

from understudy.foundation.clock import Clock
from understudy.wire.transport import is_loopback, split_address

_LOOPBACK = "127.0.0.1"
_PATIENCE = 60.0  # seconds until the name of a coordinator must be known; a cluster's names may come after its hosts
_PAUSE = 1.0


async def own_address(
    coordinators: Sequence[str],
    others: Sequence[str],
    clock: Clock,
    *,
    patience: float = _PATIENCE,
    seen_from: Callable[[str], str | None] | None = None,
) -> str:
    """`coordinators`: as HOST:PORT. `others`: addresses of this host, for where no way to a coordinator names one."""
    ask = seen_from or address_towards
    deadline = clock.now() + patience
    while True:
        ways = await asyncio.gather(*(asyncio.to_thread(ask, address) for address in coordinators))
        if any(ways) or clock.now() >= deadline:
            return chosen(coordinators, ways, others)
        await asyncio.sleep(_PAUSE)


def address_towards(coordinator: str) -> str | None:
    """None: its name is not known, or there is no way to it."""
    host, port = split_address("--coordinator", coordinator)
    with contextlib.suppress(OSError):
        for *_, target in socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
                way.connect(target)
                return str(way.getsockname()[0])
    return None


def chosen(coordinators: Sequence[str], ways: Sequence[str | None], others: Sequence[str]) -> str:
    """A coordinator on this host is reached over the loopback interface, which says nothing to other hosts; unless it
    is called so, because the whole job is on one machine."""
    beyond = [way for way in ways if way and not is_loopback(way)]
    if beyond:
        return beyond[0]
    if coordinators and all(is_loopback(split_address("--coordinator", each)[0]) for each in coordinators):
        return _LOOPBACK
    return next((own for own in others if ipaddress.ip_address(own).version == 4), _LOOPBACK)
