"""Makes certificates for trying things out: an authority, and one pair per party."""

import datetime
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.errors import SettingsError
from understudy.wire.certificates import AUTHORITY, CERTIFICATE, KEY
from understudy.wire.roles import NAME, PartyRole

_CLOCKS_DIFFER_BY = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Authority:
    """Its keeper can sign again, for the same parties or more."""

    certificate: Any
    key: Any

    @property
    def pem(self) -> bytes:
        return _pem(self.certificate)

    def secret_pem(self) -> bytes:
        """With its key: a reader of this can sign."""
        return self.pem + _key_pem(self.key)

    @staticmethod
    def read(secret_pem: bytes) -> "Authority":
        """Raises `ValueError` if it is none."""
        _elliptic_curves()
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        return Authority(x509.load_pem_x509_certificate(secret_pem), load_pem_private_key(secret_pem, None))


def make_authority(days: float = 30) -> Authority:
    ec = _elliptic_curves()
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(_sign(f"{NAME} test authority", key, key, None, days), key)


def make_set(
    folder: Path,
    parties: Sequence[str],
    *,
    coordinators: Sequence[str] = (),
    api_clients: Sequence[str] = (),
    agents: Sequence[str] = (),
    days: float = 30,
    authority: Authority | None = None,
) -> list[Path]:
    """A folder per party. A party may be all that it is named for, and an agent if it is named for nothing; all may be
    everything if none is named. Without `authority` a new one is made and its key is thrown away, so that the set
    cannot grow. Returns the folders."""
    for party in parties:
        if Path(party).name != party or party in ("", ".", ".."):
            raise SettingsError(f"{party!r} cannot be the name of a folder")
    authority = authority or make_authority(days)
    named = {PartyRole.COORDINATOR: coordinators, PartyRole.API_CLIENT: api_clients, PartyRole.AGENT: agents}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / AUTHORITY, authority.pem)
    made = []
    for party in parties:
        roles = [role for role, those in named.items() if party in those or not any(named.values())]
        issue(folder / party, party, roles or [PartyRole.AGENT], authority, days)
        made.append(folder / party)
    return made


def issue(place: Path, party: str, roles: Collection[PartyRole], authority: Authority, days: float) -> None:
    """The three files of one party."""
    ec = _elliptic_curves()
    key = ec.generate_private_key(ec.SECP256R1())
    place.mkdir(mode=0o700, exist_ok=True)
    signed = _sign(party, key, authority.key, authority.certificate, days, roles)
    _write(place / AUTHORITY, authority.pem)
    _write(place / CERTIFICATE, _pem(signed))
    _write(place / KEY, _key_pem(key))


def _elliptic_curves() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise SettingsError("making certificates needs cryptography: pip install 'understudy[hosts]'") from None
    return ec


def _sign(
    name: str, key: Any, signing_key: Any, issuer: Any, days: float, roles: Collection[PartyRole] = frozenset()
) -> Any:
    """A certificate for `key`'s owner; without an issuer it signs itself and is an authority. All our authorities have
    the same name, so a certificate says which key has signed it: a party may trust two of them for a while."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER_BY)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if issuer is not None:
        serves, calls = PartyRole.COORDINATOR in roles, any(role is not PartyRole.COORDINATOR for role in roles)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] * serves + [ExtendedKeyUsageOID.CLIENT_AUTH] * calls
        names = [x509.DNSName(NAME)] * serves + [x509.UniformResourceIdentifier(role.uri) for role in roles]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signing_key, hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _write(path: Path, content: bytes) -> None:
    """No other user may read a key, not even for the moment before its mode is changed."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
