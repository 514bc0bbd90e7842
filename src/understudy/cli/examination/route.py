"""Over which interface the way to an address goes, and over which one gloo would go.

The kernel is asked (netlink), so that rules and several tables are respected.
"""

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.cli.examination.finding import Finding

GLOO = "GLOO_SOCKET_IFNAME"
_GET_ROUTE, _NEW_ROUTE, _REQUEST = 26, 24, 1
_DESTINATION, _INTERFACE = 1, 4  # attributes of a route
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`speed`: of the link in Mb/s, where its driver says it."""

    local: str
    interface: str | None
    speed: int | None = None

    def __str__(self) -> str:
        over = f", interface {self.interface}" if self.interface else ", interface unknown"
        return self.local + over + (f" ({self.speed} Mb/s)" if self.speed else "")


def route_of(connection: socket.socket) -> Route:
    """Of a connected TCP socket."""
    local, remote = connection.getsockname()[0], connection.getpeername()[0]
    interface = _ask_kernel(remote)
    return Route(local=local, interface=interface, speed=_speed(interface))


def _ask_kernel(remote: str) -> str | None:
    address = ipaddress.ip_address(remote.partition("%")[0])
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _DESTINATION) + address.packed
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute
    question = _HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_TIMEOUT)
            kernel.send(question)
            return _interface_in(kernel.recv(65536))
    except (OSError, struct.error):
        return None


def _interface_in(answer: bytes) -> str | None:
    length, kind, *_ = _HEADER.unpack_from(answer)
    place = _HEADER.size + _ROUTE.size
    while kind == _NEW_ROUTE and place + _ATTRIBUTE.size <= min(length, len(answer)):
        size, name = _ATTRIBUTE.unpack_from(answer, place)
        if name == _INTERFACE:
            return socket.if_indextoname(*struct.unpack_from("=I", answer, place + _ATTRIBUTE.size))
        place += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return None


def _speed(interface: str | None) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        speed = int(Path(f"/sys/class/net/{interface}/speed").read_text())
        return speed if speed > 0 else None
    return None


def interfaces_here() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def address_of_own_name() -> str | None:
    """What gloo takes when it is not told an interface."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def gloo(route: Route, environment: Mapping[str, str], interfaces: Sequence[str], by_name: str | None) -> Finding:
    """Would state travel where we measured? `by_name`: the address of this host's own name."""
    wanted = [name.strip() for name in environment.get(GLOO, "").split(",") if name.strip()]
    absent = [name for name in wanted if name not in interfaces]
    if absent:
        return Finding(
            f"{GLOO} names {', '.join(absent)}, and this host has no such interface",
            good=False,
            wrong=True,
            advice=f"gloo ends with an error. There are: {', '.join(interfaces)}",
        )
    if wanted:
        return Finding(
            f"{GLOO} is {','.join(wanted)}",
            good=route.interface is None or route.interface in wanted,
            advice=f"but the way to this peer is {route.interface}: state travels over another network than the one "
            f"that was measured. Give --peer the address that {wanted[0]} leads to, or set {GLOO} to {route.interface}",
        )
    if ipaddress.ip_address(route.local.partition("%")[0]).is_loopback:
        return Finding(f"{GLOO} is not set; the peer is on this host", good=True)
    return Finding(
        f"{GLOO} is not set; gloo takes the address of this host's name, {by_name or 'which has none'}",
        good=by_name == route.local,
        advice=f"the way to this peer begins at {route.local}: set {GLOO}={route.interface or '...'} for every rank",
    )
