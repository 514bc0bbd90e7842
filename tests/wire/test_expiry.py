"""Which certificates have ended, and certificates of two authorities at once."""

import ssl
import time
from pathlib import Path

import pytest

from understudy.wire.certificates import Certificates
from understudy.wire.expiry import ended
from understudy.wire.issuing import make_authority, make_set
from understudy.wire.roles import NAME

DAY = 86400.0


def test_a_certificate_that_has_ended_is_named(tmp_path: Path) -> None:
    authority = make_authority()
    make_set(tmp_path, ["host1"], authority=authority)
    good = Certificates.read(tmp_path / "host1")
    assert ended(good, time.time()) == ""
    assert "host1/cert.pem (on " in ended(good, time.time() + 31 * DAY)
    make_set(tmp_path, ["host1"], authority=authority, days=-60 / DAY)
    why = ended(Certificates.read(tmp_path / "host1"), time.time())
    assert "the certificate has ended: " in why and "host1/cert.pem" in why and "ca.pem" not in why


@pytest.mark.parametrize("former_first", [True, False])
def test_two_authorities_of_the_same_name_are_trusted_at_once(tmp_path: Path, former_first: bool) -> None:
    former, next_one = make_authority(), make_authority()
    make_set(tmp_path / "former", ["host1"], authority=former)
    make_set(tmp_path / "next", ["boss", "host1"], authority=next_one)
    both = former.pem + next_one.pem if former_first else next_one.pem + former.pem
    for party in ("former/host1", "next/boss", "next/host1"):
        (tmp_path / party / "ca.pem").write_bytes(both)
    coordinator = Certificates.read(tmp_path / "next" / "boss")
    for host in ("former/host1", "next/host1"):
        assert shake_hands(coordinator.server_context(), tmp_path / host) == "host1"


def shake_hands(server: ssl.SSLContext, host: Path) -> str:
    """Without a network. Returns whom the server has seen."""
    client = ssl.create_default_context(cafile=str(host / "ca.pem"))
    client.load_cert_chain(host / "cert.pem", host / "key.pem")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=NAME), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = ends[1].getpeercert()
    assert shown is not None
    subject: tuple[tuple[tuple[str, str], ...], ...] = shown["subject"]  # type: ignore[assignment]
    return subject[0][0][1]
