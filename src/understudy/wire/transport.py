"""How agents and coordinators reach each other: one gRPC method, and what makes a silent peer noticed.

Messages are our own (`wire.host_messages`), so no generated code is needed. The transport's keep-alive is the heartbeat
of a host: it costs no Python.
"""

import functools
import ipaddress
import os
from typing import Any

from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates, CertificateSet
from understudy.wire.host_messages import LARGEST
from understudy.wire.roles import NAME, Certified

SERVICE, METHOD = "understudy.v1.Coordinator", "Attend"
_FORK_SETTING = "GRPC_ENABLE_FORK_SUPPORT"
PATH = f"/{SERVICE}/{METHOD}"

LARGEST_TAKEN = LARGEST + 1024 * 1024
"""Bytes that gRPC takes. What is above `LARGEST` we refuse and count; what is above this gRPC refuses, unread."""

_BOTH = (
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),  # without this one a peer that stands still is noticed after a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", LARGEST_TAKEN),
    ("grpc.max_send_message_length", 2 * LARGEST_TAKEN),  # the receiver refuses, and says so
)
SERVER_OPTIONS = (
    *_BOTH,
    ("grpc.keepalive_time_ms", 1000),  # a host that vanished is noticed after 1 to 2 s
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 300),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a second coordinator on the same port is a mistake
    ("grpc.max_concurrent_streams", 4),  # of one connection; an agent has one
    ("grpc.server_handshake_timeout_ms", 10_000),  # gRPC's own is two minutes
)
CLIENT_OPTIONS = (
    *_BOTH,
    ("grpc.keepalive_time_ms", 2000),  # training goes on without a coordinator, so this is not urgent
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # agents in one process (load tests) have a connection each
)


def server_options(most_connections: int) -> tuple[tuple[str, int], ...]:
    """Connections beyond these are closed at once: each costs memory before it has shown a certificate."""
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most_connections))


@functools.cache
def grpc_module() -> Any:
    """Loaded so that this process may fork: an agent starts workers, and what gRPC does in a new process before that
    runs a program of its own can end it (seen with 1 of 9). The setting is read once and is not for the workers."""
    before = os.environ.get(_FORK_SETTING)
    os.environ[_FORK_SETTING] = "false"
    try:
        import grpc
        import grpc.aio

        grpc.insecure_channel("127.0.0.1:1").close()  # connects to no server; makes gRPC read its settings
    except ImportError:
        raise SettingsError("many hosts need the package grpcio: pip install 'understudy[hosts]'") from None
    finally:
        if before is None:
            del os.environ[_FORK_SETTING]
        else:
            os.environ[_FORK_SETTING] = before
    return grpc


def add_port(server: Any, address: str, certificates: Certificates | None) -> int:
    """Both sides prove their identity, or the address is of this host only."""
    check_address("--listen", address, certificates)
    try:
        if certificates is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _server_credentials(certificates)))
    except RuntimeError as error:
        raise SettingsError(f"--listen {address}: {str(error).splitlines()[0]}") from None


def _server_credentials(certificates: Certificates) -> Any:
    """gRPC asks at every handshake, in a thread of its own, whether there are others than it was given."""
    grpc = grpc_module()

    def configuration(given: CertificateSet) -> Any:
        pair = (given.key, given.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=given.authority)

    used = certificates.present

    def renewed() -> Any:
        nonlocal used
        present = certificates.present
        if present is used:
            return None
        used = present
        return configuration(present)

    return grpc.dynamic_ssl_server_credentials(configuration(used), renewed, require_client_authentication=True)


def open_channel(address: str, certificates: Certificates | None) -> Any:
    """With the certificates of this moment; a caller that connects again opens another one. TLS takes only a server's
    certificate for the name that coordinators alone have."""
    grpc = grpc_module()
    if certificates is None:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", NAME))
    return grpc.aio.secure_channel(address, client_credentials(certificates), options=options)


def client_credentials(certificates: Certificates) -> Any:
    """With which a client shows its own certificate, and trusts its authority's only."""
    present = certificates.present
    return grpc_module().ssl_channel_credentials(
        root_certificates=present.authority,
        private_key=present.key,
        certificate_chain=present.certificate,
    )


def certified_caller(context: Any) -> Certified:
    """What the certificate of the other side of a call says; nothing, if there is no TLS."""
    proven = context.auth_context()

    def texts(*kinds: str) -> list[str]:
        return [value.decode(errors="replace") for kind in kinds for value in proven.get(kind, ())]

    return Certified.of(texts("x509_common_name", "peer_dns", "peer_ip"), texts("peer_uri"))


def check_address(flag: str, address: str, certificates: Certificates | None) -> None:
    """Without certificates no party beyond this host is heard."""
    host, _ = split_address(flag, address)
    if certificates is None and not is_loopback(host):
        raise SettingsError(
            f"{flag} {address}: without certificates the coordinator listens on this host only; give --certs FOLDER "
            f"(`understudy certs` makes a set), or {flag} 127.0.0.1:PORT"
        )


def split_address(flag: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{flag} {address}: give it as HOST:PORT")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Names are not looked up: what they mean may change."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def explain(error: BaseException) -> str:
    """In one line, why there is no connection."""
    if isinstance(error, grpc_module().aio.AioRpcError):
        return f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"


def is_unauthorised(error: BaseException) -> bool:
    """The other side has refused our token."""
    grpc = grpc_module()
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAUTHENTICATED
