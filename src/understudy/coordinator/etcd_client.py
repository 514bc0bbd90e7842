"""Makes the client of etcd. It knows one address; gRPC underneath takes a list, and turns to the next by itself."""

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from understudy.errors import SettingsError
from understudy.wire.transport import grpc_module

_OPTIONS = {
    "grpc.lb_policy_name": "round_robin",
    "grpc.max_reconnect_backoff_ms": 500,
    "grpc.max_receive_message_length": -1,
}


def make_client(address: str) -> Any:
    """`address`: etcd://h1:2379,h2:2379."""
    grpc_module()  # before the client loads it, for its settings
    try:
        import aetcd
    except ImportError:
        raise SettingsError("--store etcd://... needs the package aetcd: pip install 'understudy[hosts]'") from None
    *others, (host, port) = _endpoints(address)
    scheme = "ipv6" if ":" in host else "ipv4"
    before = "".join(f"{_literal(name)}:{number}," for name, number in others)
    # The client joins host and port with a colon, so the last port is left to it.
    return aetcd.Client(host=f"{scheme}:{before}{_literal(host)}", port=port, options=_OPTIONS)


def _endpoints(address: str) -> list[tuple[str, int]]:
    """All as numbers of one family: gRPC takes a list of those only."""
    try:
        given = [urlsplit(f"//{part}") for part in urlsplit(address).netloc.split(",")]
        found = [(_resolve(part.hostname or ""), part.port or 2379) for part in given]
    except (ValueError, OSError) as error:
        raise SettingsError(f"--store {address}: give it as etcd://host:2379,host:2379 ({error})") from None
    if len({":" in host for host, _ in found}) != 1:
        raise SettingsError(f"--store {address}: give either IPv4 or IPv6 addresses, not both")
    return found


def _resolve(host: str) -> str:
    if not host:
        raise ValueError("a host is missing")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return socket.gethostbyname(host)


def _literal(host: str) -> str:
    return f"%5B{host}%5D" if ":" in host else host
