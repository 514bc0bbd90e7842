"""What a certificate lets its holder be, read from files and from TLS, and what is said to those who may not."""

import re
from pathlib import Path

import pytest
from cryptography import x509

from understudy.cli.main import main
from understudy.errors import SettingsError
from understudy.wire import issuing
from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_set
from understudy.wire.roles import NAME, Certified, PartyRole, certified_in

AGENT, COORDINATOR, CLIENT = PartyRole.AGENT, PartyRole.COORDINATOR, PartyRole.API_CLIENT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    make_set(folder, ["boss", "host1", "guest"], coordinators=["boss"], api_clients=["guest", "boss"])
    return folder


@pytest.fixture
def of_an_earlier_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As sets were before there were roles: all of them for the name of coordinators."""
    plain = x509.SubjectAlternativeName

    def without_roles(_names: object) -> x509.SubjectAlternativeName:
        return plain([x509.DNSName(NAME)])

    monkeypatch.setattr(x509, "SubjectAlternativeName", without_roles)
    make_set(tmp_path / "old", ["boss", "host1"])
    monkeypatch.undo()
    return tmp_path / "old"


def test_a_set_says_who_may_be_what(made: Path) -> None:
    told = {party: Certificates.read(made / party).certified() for party in ("boss", "host1", "guest")}
    assert told == {
        "boss": Certified(frozenset({"boss", NAME}), frozenset({COORDINATOR, CLIENT})),
        "host1": Certified(frozenset({"host1"}), frozenset({AGENT})),
        "guest": Certified(frozenset({"guest"}), frozenset({CLIENT})),
    }


@pytest.mark.parametrize(
    ("party", "uses"), [("boss", ["server", "client"]), ("host1", ["client"]), ("guest", ["client"])]
)
def test_only_who_decides_may_be_a_server(made: Path, party: str, uses: list[str]) -> None:
    certificate = x509.load_pem_x509_certificate((made / party / "cert.pem").read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert sorted(re.sub("Auth", "", use._name) for use in found) == sorted(uses)


@pytest.mark.parametrize("role", PartyRole)
@pytest.mark.parametrize("party", ["boss", "host1", "guest"])
def test_a_party_that_may_not_be_what_it_is_started_as_is_told_so(made: Path, party: str, role: PartyRole) -> None:
    may = {"boss": (COORDINATOR, CLIENT), "host1": (AGENT,), "guest": (CLIENT,)}[party]
    if role in may:
        Certificates.read(made / party, role)
        return
    with pytest.raises(SettingsError, match=rf"{made}/{party}: cert.pem is for .*, not {role.value};.*{role.uri}"):
        Certificates.read(made / party, role)


@pytest.mark.parametrize(("party", "role"), [("boss", COORDINATOR), ("host1", AGENT), ("host1", CLIENT)])
def test_certificates_of_earlier_versions_are_refused_with_what_to_do(
    of_an_earlier_version: Path, party: str, role: PartyRole
) -> None:
    told = rf"has no role, like those that earlier versions made; `understudy certs .*{role.uri}"
    with pytest.raises(SettingsError, match=told):
        Certificates.read(of_an_earlier_version / party, role)


def test_a_coordinator_ends_at_once_with_such_certificates(
    of_an_earlier_version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--run-dir", str(tmp_path / "run"), "--token-file", str(tmp_path / "none")]
    assert main(["coordinator", "--certs", str(of_an_earlier_version / "boss"), *run]) == 2
    assert "has no role" in capsys.readouterr().err
    assert main(["certs", str(of_an_earlier_version)]) == 0
    assert "for boss (no role: make a new set), until" in capsys.readouterr().out


def test_renewed_files_that_take_the_role_away_are_not_used(tmp_path: Path) -> None:
    make_set(tmp_path, ["boss", "host1"], coordinators=["boss"])
    certificates = Certificates.read(tmp_path / "host1", AGENT)
    before = certificates.present
    make_set(tmp_path, ["boss", "host1"], coordinators=["boss"], api_clients=["host1"])
    with pytest.raises(SettingsError, match="has the role api-client, not agent"):
        certificates.read_again()
    assert certificates.present is before


def test_an_agent_with_the_name_of_coordinators_is_refused() -> None:
    """It could pass for one: agents look for that name only."""
    both = Certified.of(["host1", NAME], [AGENT.uri])
    assert "could pass for a coordinator" in both.why_not(AGENT)
    assert not Certified.of(["host1", NAME], [AGENT.uri, COORDINATOR.uri]).why_not(AGENT)
    assert f"not for {NAME}" in Certified.of(["boss"], [COORDINATOR.uri]).why_not(COORDINATOR)


def test_a_name_is_no_role_and_a_role_is_no_name() -> None:
    named = Certified.of([AGENT.uri], [])
    assert not named.roles
    shown = {
        "subject": ((("commonName", "host1"),), (("organizationName", "somebody"),)),
        "subjectAltName": (("DNS", "host1.lan"), ("URI", AGENT.uri), ("URI", "spiffe://x/y"), ("DNS", CLIENT.uri)),
    }
    assert certified_in(shown) == Certified(frozenset({"host1", "host1.lan", CLIENT.uri}), frozenset({AGENT}))
    assert certified_in(None) == certified_in({}) == Certified(frozenset(), frozenset())


def test_of_a_chain_the_first_certificate_counts(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "host1"
    folder.mkdir()
    for name in ("ca.pem", "key.pem"):
        issuing._write(folder / name, (made / "host1" / name).read_bytes())
    chain = (made / "host1" / "cert.pem").read_bytes() + (made / "boss" / "cert.pem").read_bytes()
    (folder / "cert.pem").write_bytes(chain)
    certified = Certificates.read(folder, AGENT).certified()
    assert certified is not None and certified.roles == {AGENT}
