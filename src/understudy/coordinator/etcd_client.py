"""Makes the client of etcd. It knows one address; gRPC underneath takes a list, and turns to the next by itself.

The package speaks without TLS; `_make_secure` gives it a channel that does. A login is the package's own. Certificates
and login are those of the moment of connecting; a caller that finds that they have changed closes the client, which
connects again by itself.
"""

import importlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from understudy.coordinator.store_login import StoreLogin
from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates
from understudy.wire.transport import client_credentials, grpc_module

_OPTIONS: dict[str, str | int] = {
    "grpc.lb_policy_name": "round_robin",
    "grpc.max_reconnect_backoff_ms": 500,
    "grpc.max_receive_message_length": -1,
}


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How etcd lets us in. `certificates`: ours, and the authority of etcd's. `name`: for which those of etcd are."""

    certificates: Certificates | None = None
    name: str = ""
    login: StoreLogin | None = None

    @property
    def present(self) -> tuple[object, object]:
        """Equal as long as nothing was renewed."""
        return (
            None if self.certificates is None else self.certificates.present,
            None if self.login is None else self.login.present,
        )


OPEN = EtcdAccess()


def make_client(address: str, access: EtcdAccess = OPEN) -> Any:
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
    target = f"{scheme}:{before}{_literal(host)}"
    kind, options = aetcd.Client, dict(_OPTIONS)
    if access.certificates is not None:
        kind = _make_secure(kind, access.certificates)
        first = urlsplit(f"//{urlsplit(address).netloc.split(',')[0]}").hostname
        options["grpc.ssl_target_name_override"] = access.name or first or ""
    if access.login is not None:
        kind = _make_known(kind, access.login)
    return kind(host=target, port=port, options=options)


def _make_known(client: Any, login: StoreLogin) -> Any:
    """A kind of client that logs in."""

    class Known(client):  # type: ignore[misc]  # the package has no types
        async def connect(self) -> None:
            self._username, self._password = login.present
            await super().connect()

    return Known


def _make_secure(client: Any, certificates: Certificates) -> Any:
    """A kind of client whose channel is encrypted."""
    rpc: Any = importlib.import_module("aetcd.rpc")

    class Secure(client):  # type: ignore[misc]  # the package has no types
        async def connect(self) -> None:
            if self._connected.is_set():
                return
            credentials = client_credentials(certificates)
            channel = rpc.secure_channel(f"{self._host}:{self._port}", credentials, options=self._options.items())
            metadata = None
            if self._username:
                asked = rpc.AuthenticateRequest(name=self._username, password=self._password)
                metadata = (("token", (await rpc.AuthStub(channel).Authenticate(asked)).token),)
            if self._connected.is_set():  # another task was faster
                await channel.close()
                return
            self.channel, self.metadata = channel, metadata
            self.kvstub, self.leasestub = rpc.KVStub(channel), rpc.LeaseStub(channel)
            self._connected.set()

    return Secure


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
