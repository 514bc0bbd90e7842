"""What the holder of a certificate may be: an agent, a coordinator or a client of the API. Its other names say so.

    URI: understudy:role/agent | understudy:role/coordinator | understudy:role/api-client     (one or more)
    DNS: understudy                                                                           (coordinators only)

The side that takes a connection reads the roles here. An agent cannot: gRPC shows it no certificate. It asks TLS for
the name `understudy` and for a server's certificate instead, so that name is a coordinator's alone, and a party that
has it without being one is refused everywhere.
"""

import asyncio
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NAME = "understudy"
_URI = "understudy:role/"


class PartyRole(enum.Enum):
    AGENT = "agent"
    COORDINATOR = "coordinator"
    API_CLIENT = "api-client"

    @property
    def uri(self) -> str:
        return _URI + self.value


@dataclass(frozen=True, slots=True)
class Certified:
    """What a certificate says of its holder. `names`: its common name, and its alternative names that are no URIs."""

    names: frozenset[str]
    roles: frozenset[PartyRole]

    @staticmethod
    def of(names: Iterable[str], uris: Iterable[str]) -> "Certified":
        found = frozenset(uris)
        return Certified(frozenset(names), frozenset(role for role in PartyRole if role.uri in found))

    def why_not(self, wanted: PartyRole) -> str:
        """Empty: its holder may be that. Else the end of a sentence about the certificate."""
        whose = f"for {', '.join(sorted(self.names)) or 'no name'}"
        if not self.roles:
            return f"{whose} and has no role, like those that earlier versions made; {_advice(wanted)}"
        if wanted not in self.roles:
            has = ", ".join(sorted(role.value for role in self.roles))
            return f"{whose} and has the role {has}, not {wanted.value}; {_advice(wanted)}"
        if NAME in self.names and PartyRole.COORDINATOR not in self.roles:
            return (
                f"{whose}, and with the name {NAME} it could pass for a coordinator; give it one without that name, "
                f"or the URI {PartyRole.COORDINATOR.uri} as well if it is one"
            )
        if wanted is PartyRole.COORDINATOR and NAME not in self.names:
            return f"{whose} and not for {NAME}, the name of every coordinator; {_advice(wanted)}"
        return ""


def _advice(wanted: PartyRole) -> str:
    flag = "" if wanted is PartyRole.AGENT else f" --{wanted.value} NAME"
    also = f" and the DNS name {NAME}" if wanted is PartyRole.COORDINATOR else ""
    return (
        f"`understudy certs FOLDER NAME...{flag}` makes new ones for all parties, and one of your own authority needs "
        f"the URI {wanted.uri}{also} among its alternative names (docs/hosts.md)"
    )


def certified_peer(transport: asyncio.BaseTransport | asyncio.StreamWriter) -> Certified | None:
    """Of the party at the other end of a connection of asyncio. None: it is one without TLS."""
    if transport.get_extra_info("ssl_object") is None:
        return None
    return certified_in(transport.get_extra_info("peercert"))


def certified_in(shown: Mapping[str, Any] | None) -> Certified:
    """`shown`: as Python's `getpeercert` tells it."""
    subject = [field for part in (shown or {}).get("subject", ()) for field in part]
    alternative = (shown or {}).get("subjectAltName", ())
    names = [value for kind, value in subject if kind == "commonName"]
    return Certified.of(
        [*names, *(value for kind, value in alternative if kind != "URI")],
        [value for kind, value in alternative if kind == "URI"],
    )


def certified_by(certificate: bytes) -> Certified | None:
    """What a file with a certificate says, which comes first in it. None: the package that can tell is missing, or it
    is stricter than the libraries that use the file; they read it themselves."""
    try:
        from cryptography import x509
    except ImportError:
        return None
    try:
        first = x509.load_pem_x509_certificates(certificate)[0]
        names = [str(each.value) for each in first.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        found = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Certified.of(names, ())
    except ValueError:
        return None
    others = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    return Certified.of([*names, *others], found.get_values_for_type(x509.UniformResourceIdentifier))
