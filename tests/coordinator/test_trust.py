"""Who is let in: mutual TLS and the token, or this host only."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.lines import LIMIT, TOKEN, Place, coordinator, greeting, line_to, play

from understudy.cli.main import main
from understudy.coordinator.health import HealthServer
from understudy.coordinator.service import Service
from understudy.coordinator.state_store import MemoryStateStore
from understudy.errors import SettingsError
from understudy.files.private import write_private
from understudy.wire import host_messages as wire
from understudy.wire import transport
from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_set

pytestmark = pytest.mark.timeout(LIMIT + 10)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    parties = ["boss", "chief", "a", "guest", "both"]
    clients = ["chief", "guest", "both"]
    make_set(folder, parties, coordinators=["boss", "chief"], api_clients=clients, agents=["both"])
    make_set(folder / "others", ["a"])
    return folder


def test_the_command_makes_a_set_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    assert main(["certs", str(folder), "boss", "host1", "--coordinator", "boss", "--days", "2"]) == 0
    for party in ("boss", "host1"):
        read = Certificates.read(folder / party)
        assert b"PRIVATE KEY" in read.key and read.authority == (folder / "ca.pem").read_bytes()
        assert (folder / party / "key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a", "--coordinator", "b"], "--coordinator b is not one of the parties"),
        (["a", "--coordinator", "a", "--api-client", "b"], "--api-client b is not one of the parties"),
        (["../a", "--coordinator", "../a"], "cannot be the name of a folder"),
        (["a", "--coordinator", "a", "--days", "0"], "--days"),
        (["a", "b"], "--coordinator NAME"),
    ],
    ids=["stranger", "strange client", "outside", "no days", "nobody who decides"],
)
def test_the_command_refuses_what_cannot_be(
    tmp_path: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", str(tmp_path / "set"), *arguments]) == 2
    assert why in capsys.readouterr().err


def test_with_certificates_of_one_authority_both_sides_are_let_in(certs: Path) -> None:
    async def story() -> None:
        async with coordinator(certificates=certs / "boss") as place, line_to(place, certificates=certs / "a") as agent:
            await agent.say(greeting())
            assert (await agent.hear(wire.Welcome)).world_size == 2
            assert not place.service.refused

    play(story)


@pytest.mark.parametrize("term", [0, 1])
def test_a_certificate_is_for_one_host(certs: Path, term: int) -> None:
    """Whoever has broken into host a cannot be host b. A host that trains already is not ended for it."""

    async def story() -> None:
        async with coordinator(certificates=certs / "boss") as place, line_to(place, certificates=certs / "a") as agent:
            await agent.say(greeting("b", term=term))
            refusal = await agent.hear(wire.Refuse)
            assert "host b has a certificate for a" in refusal.reason and "--host-name" in refusal.reason
            assert refusal.final is (term == 0)
            assert place.leading.coordinator is None and place.service.refused == {"certificate": 1}

    play(story)


def test_without_the_right_certificate_nobody_gets_as_far_as_the_token(certs: Path) -> None:
    async def story() -> None:
        async with coordinator(certificates=certs / "boss") as place:
            for stranger in (None, certs / "others" / "a", certs / "boss"):  # the last one is a server's only
                with pytest.raises(transport.grpc_module().aio.AioRpcError):
                    async with line_to(place, certificates=stranger):
                        pass
            assert place.leading.coordinator is None and not place.service.refused

    play(story)


def test_a_hosts_certificate_does_not_make_a_coordinator(certs: Path) -> None:
    async def story() -> None:
        async with coordinator(certificates=certs / "a") as place:
            with pytest.raises(transport.grpc_module().aio.AioRpcError):
                async with line_to(place, certificates=certs / "both"):
                    pass

    play(story)


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "standby"])
@pytest.mark.parametrize("party", ["guest", "chief"])
def test_who_is_no_agent_gets_no_line_even_with_the_token(certs: Path, party: str, leads: bool) -> None:
    async def story() -> None:
        async with (
            coordinator(certificates=certs / "boss", leads=leads) as place,
            line_to(place, certificates=certs / party) as agent,
        ):
            await agent.say(greeting(party))
            refusal = await agent.hear(wire.Refuse)
            assert f"the certificate of host {party} is for {party}" in refusal.reason
            assert ", not agent;" in refusal.reason and "understudy certs" in refusal.reason and refusal.final
            assert not refusal.leader and place.service.refused == {"role": 1}

    play(story)


def test_who_is_both_may_be_an_agent_and_ask_the_api(certs: Path) -> None:
    async def story() -> None:
        async with (
            coordinator(certificates=certs / "boss") as place,
            line_to(place, certificates=certs / "both") as agent,
        ):
            await agent.say(greeting("both"))
            await agent.hear(wire.Welcome)
        async with pages(certs) as port:
            assert b"200 OK" in await _get(port, _client_context(certs, "both"))

    play(story)


def test_with_the_right_certificate_the_token_is_still_asked_for(certs: Path) -> None:
    async def story() -> None:
        async with (
            coordinator(certificates=certs / "boss") as place,
            line_to(place, certificates=certs / "a", token="not this one, not this one") as agent,
        ):
            await agent.say(greeting())
            assert await agent.ended() == "UNAUTHENTICATED"
            assert place.service.refused == {"unauthorised": 1}

    play(story)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "127.0.0.1.example.com:0", "192.0.2.1:0", "somewhere:0"])
def test_without_certificates_only_this_host_is_listened_to(address: str) -> None:
    async def story() -> None:
        with pytest.raises(SettingsError, match=r"--listen .*--certs"):
            await Service("job", "token").open(address, None)
        with pytest.raises(SettingsError, match=r"--http .*--certs"):
            await HealthServer({}).open(address, None)

    play(story)


@pytest.mark.parametrize("address", ["127.0.0.1", ":1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_address_that_is_none_is_explained(address: str) -> None:
    with pytest.raises(SettingsError, match="HOST:PORT"):
        transport.split_address("--listen", address)


def test_a_short_token_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_private(tmp_path / "token", b"short")
    arguments = ["coordinator", "--token-file", str(tmp_path / "token"), "--run-dir", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "16 characters" in capsys.readouterr().err


def test_a_token_or_a_key_that_others_may_read_is_not_taken(
    tmp_path: Path, certs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["coordinator", "--token-file", str(tmp_path / "token"), "--run-dir", str(tmp_path / "run")]
    write_private(tmp_path / "token", b"0123456789abcdef")
    (tmp_path / "token").chmod(0o644)
    assert main(arguments) == 2
    assert f"0644, so that others than its owner may read or change it; run chmod 600 {tmp_path}/token" in (
        capsys.readouterr().err
    )
    (tmp_path / "token").chmod(0o600)
    shutil.copytree(certs / "boss", tmp_path / "boss")
    (tmp_path / "boss" / "key.pem").chmod(0o640)
    assert main([*arguments, "--certs", str(tmp_path / "boss")]) == 2
    assert f"chmod 600 {tmp_path}/boss/key.pem" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_renewed_certificates_count_at_the_next_connection_and_end_none(tmp_path: Path) -> None:
    """Agent and coordinator each read theirs again, as `wire.renewal` does. The old authority is trusted no more."""
    make_set(tmp_path / "set", ["boss", "a", "b"], coordinators=["boss"])
    shutil.copytree(tmp_path / "set", tmp_path / "old")

    async def story() -> None:
        service = Service("job", TOKEN)
        coordinators, agents, others = (Certificates.read(tmp_path / "set" / party) for party in ("boss", "a", "b"))
        place = Place(service, await service.open("127.0.0.1:0", coordinators), MemoryStateStore())
        await place.lead()
        try:
            async with line_to(place, certificates=agents) as before:
                await before.say(greeting())
                await before.hear(wire.Welcome)
                make_set(tmp_path / "set", ["boss", "a", "b"], coordinators=["boss"])
                assert coordinators.read_again() and agents.read_again() and others.read_again()
                async with line_to(place, certificates=others) as after:
                    await after.say(greeting("b"))
                    await after.hear(wire.Welcome)
                with pytest.raises(transport.grpc_module().aio.AioRpcError):
                    async with line_to(place, certificates=tmp_path / "old" / "a"):
                        pass
                await before.say(wire.Farewell(reason="still heard"))
                await before.ended()
                assert not service.refused
        finally:
            await place.state_store.close()
            await service.close()

    play(story)


# -- HTTP --------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def pages(certs: Path) -> AsyncIterator[int]:
    server = HealthServer({"/health": lambda: {"healthy": True}})
    yield await server.open("127.0.0.1:0", Certificates.read(certs / "boss"))
    await server.close()


def test_pages_over_tls_want_a_certificate_too(certs: Path) -> None:
    async def story() -> None:
        async with pages(certs) as port:
            assert b"200 OK" in await _get(port, _client_context(certs, "guest"))
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert not await _get(port, _client_context(certs, None))

    play(story)


def test_pages_are_for_api_clients_and_not_for_agents(certs: Path) -> None:
    async def story() -> None:
        async with pages(certs) as port:
            answer = await _get(port, _client_context(certs, "a"))
            assert b"403 Forbidden" in answer and b"has the role agent, not api-client" in answer
            assert b"healthy" not in answer

    play(story)


def _client_context(certs: Path, party: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    if party is not None:
        context.load_cert_chain(certs / party / "cert.pem", certs / party / "key.pem")
    return context


async def _get(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="understudy")
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    answer: Any = await asyncio.wait_for(reader.read(), 5.0)
    writer.close()
    return bytes(answer)


def test_pages_follow_renewed_certificates(tmp_path: Path) -> None:
    make_set(tmp_path / "set", ["boss", "a"], coordinators=["boss"], api_clients=["a"])
    shutil.copytree(tmp_path / "set", tmp_path / "old")

    async def story() -> None:
        certificates = Certificates.read(tmp_path / "set" / "boss")
        server = HealthServer({"/health": lambda: {"healthy": True}})
        port = await server.open("127.0.0.1:0", certificates)
        old = _client_context(tmp_path / "old", "a")
        assert b"200 OK" in await _get(port, old)
        make_set(tmp_path / "set", ["boss", "a"], coordinators=["boss"], api_clients=["a"])
        assert certificates.read_again()
        assert b"200 OK" in await _get(port, _client_context(tmp_path / "set", "a"))
        with pytest.raises(ssl.SSLError):  # it does not trust us, and we do not trust it
            await _get(port, old)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert not await _get(port, old)
        await server.close()

    play(story)
