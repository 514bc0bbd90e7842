"""Certificates of the parties of a job: read from a folder, and read again when they are renewed there.

A coordinator's certificate is for the name `understudy`, whatever its address: hosts come and go with their addresses.
What else a certificate must say of its holder is in `wire.roles`.
"""

import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy.errors import SettingsError
from understudy.files.private import read_secret
from understudy.wire.roles import Certified, PartyRole, certified_by

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """What the three files of a party held at one moment. `context`: the same, for the TLS servers of Python."""

    authority: bytes
    certificate: bytes
    key: bytes
    context: ssl.SSLContext

    def same_as(self, files: tuple[bytes, bytes, bytes]) -> bool:
        return (self.authority, self.certificate, self.key) == files


class Certificates:
    """Of one party: a folder with ca.pem, cert.pem and key.pem (`understudy certs` makes a set).

    `present` is what new connections use. A caller that opens one looks there each time, so that renewed files count
    without a restart; `wire.renewal` reads them again. `role`: what this party is; files that do not let it be that are
    refused here, before others would refuse it. None: no party of a job, as for etcd. `flag`: which one named the
    folder.
    """

    effect = "new connections use them"

    def __init__(self, folder: Path, role: PartyRole | None = None, flag: str = "--certs") -> None:
        self.folder, self.role, self._flag = folder, role, flag
        self.present = self._checked(self._files())

    @staticmethod
    def read(folder: Path, role: PartyRole | None = None, flag: str = "--certs") -> "Certificates":
        return Certificates(folder, role, flag)

    @property
    def title(self) -> str:
        return f"the certificates in {self.folder}"

    def read_again(self) -> bool:
        """True if there are new ones. Raises `SettingsError` when they cannot be used, and those before stay in use."""
        files = self._files()
        if self.present.same_as(files):
            return False
        self.present = self._checked(files)
        return True

    @property
    def authority(self) -> bytes:
        return self.present.authority

    @property
    def certificate(self) -> bytes:
        return self.present.certificate

    @property
    def key(self) -> bytes:
        return self.present.key

    def server_context(self) -> ssl.SSLContext:
        """For a TLS server that asks for certificates, too. Each handshake takes the certificates of its moment, and no
        session outlives them: a ticket would let in a party that was trusted before."""
        context = _new_context()
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET

        def take_the_present_ones(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.present.context

        context.sni_callback = take_the_present_ones
        return context

    def ends(self) -> Mapping[str, float]:
        """When the certificates of each file end, by the wall clock. Empty: the package that can tell is missing."""
        present = self.present
        return ends_of(present.certificate, present.authority)

    def certified(self) -> Certified | None:
        """What they say of this party. None: the package that can tell is missing."""
        return certified_by(self.present.certificate)

    # -- the files ----------------------------------------------------------------------------------------------------

    def _files(self) -> tuple[bytes, bytes, bytes]:
        key = read_secret(self._flag, self.folder / KEY)
        try:
            authority, certificate = ((self.folder / name).read_bytes() for name in (AUTHORITY, CERTIFICATE))
        except OSError as error:
            raise self._wrong(f"{error.strerror}: {error.filename}") from None
        return authority, certificate, key

    def _checked(self, files: tuple[bytes, bytes, bytes]) -> CertificateSet:
        """They can be read, and belong together. Files that are just being replaced do not yet."""
        authority, certificate, key = files
        context = _new_context()
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError):
            raise self._wrong(f"{AUTHORITY} holds no certificate") from None
        try:
            context.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY, password="")
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise self._wrong(f"{CERTIFICATE} and {KEY} cannot be used together: {why}") from None
        if self._files() != files:
            raise self._wrong("the files are being changed")
        certified = certified_by(certificate)
        if self.role is not None and certified is not None and (why_not := certified.why_not(self.role)):
            raise self._wrong(f"{CERTIFICATE} is {why_not}")
        return CertificateSet(authority, certificate, key, context)

    def _wrong(self, what: str) -> SettingsError:
        return SettingsError(f"{self._flag} {self.folder}: {what}")


@functools.lru_cache(maxsize=4)
def ends_of(certificate: bytes, authority: bytes) -> Mapping[str, float]:
    """A certificate with those that link it to its authority ends with the first of them. Of several authorities the
    last one counts: the next one is there before the former one goes."""
    try:
        from cryptography import x509
    except ImportError:
        return {}
    try:
        own, trusted = (
            [each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(content)]
            for content in (certificate, authority)
        )
    except ValueError:  # it is stricter than the libraries that use them
        return {}
    return {CERTIFICATE: min(own), AUTHORITY: max(trusted)}


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    return context
