"""The server on a real port, inside a loop that goes on with other work."""

import asyncio
import contextlib
import json
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.api.stage import READER, Stage
from tests.ledger.made_up import WrittenAtOnce

from understudy.api import server as server_module
from understudy.api.address import ADDRESS_FILE
from understudy.api.job import JobInterface
from understudy.api.metrics import Metrics
from understudy.api.rules import Rules
from understudy.api.server import ApiServer
from understudy.api.setup import ApiRequest, serving
from understudy.errors import SettingsError
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import HostId
from understudy.ledger.writing import RecordLog
from understudy.wire.certificates import Certificates
from understudy.wire.connections import NO_REQUEST, SILENT, ConnectionLimits
from understudy.wire.issuing import make_set

pytestmark = pytest.mark.timeout(180)
GET = f"GET /v1/job HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READER}\r\n\r\n".encode()


async def ask(port: int, request: bytes, context: ssl.SSLContext | None = None) -> bytes:
    name = None if context is None else "understudy"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 10.0)
    finally:
        writer.close()


def with_server(
    folder: Path, story: Callable[[ApiServer, Stage], Awaitable[None]], certificates: Certificates | None = None
) -> list[str]:
    said: list[str] = []

    async def whole() -> None:
        stage = Stage(folder)
        stage.begin()
        server = ApiServer(stage.api.app, said.append, stage.api.metrics.refused)
        await server.open("127.0.0.1:0", certificates)
        try:
            await story(server, stage)
        finally:
            await server.close()
        assert stage.faults == []

    asyncio.run(asyncio.wait_for(whole(), 30.0))
    return said


def test_it_answers_and_leaves_signals_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def story(server: ApiServer, _: Stage) -> None:
        head, _sep, body = (await ask(server.port, GET)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and json.loads(body)["job"] == "job"
        assert b"server:" not in head.lower() and head.lower().count(b"connection: close") == 1
        assert (await ask(server.port, GET.replace(READER.encode(), b"x" * 30))).startswith(b"HTTP/1.1 401")
        assert signal.getsignal(signal.SIGTERM) is before

    assert with_server(tmp_path, story) == []


def test_nonsense_on_the_wire(tmp_path: Path) -> None:
    async def story(server: ApiServer, _: Stage) -> None:
        for nonsense in (
            b"\x16\x03\x01\x00\x00\r\n\r\n",
            b"GET /v1/job\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /v1/job HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
            b"POST /v1/actions/migrate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/actions/migrate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET /v1/job HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            b"GET /v1/job HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
            b"GET /v1/%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            answer = await ask(server.port, nonsense)
            assert answer.startswith(b"HTTP/1.1 4"), (nonsense[:60], answer[:100])
        assert (await ask(server.port, GET)).startswith(b"HTTP/1.1 200")

    assert with_server(tmp_path, story) == []


def test_who_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_REQUEST_TIMEOUT", 0.1)
    monkeypatch.setattr(server_module, "_CONNECTIONS", ConnectionLimits(handshake=0.1))

    async def story(server: ApiServer, stage: Stage) -> None:
        assert await ask(server.port, b"GET /v1/jo") == b""
        assert await ask(server.port, b"") == b""
        assert stage.api.metrics.refusals == {NO_REQUEST: 1, SILENT: 1}

    with_server(tmp_path, story)


def test_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    async def story(server: ApiServer, stage: Stage) -> None:
        request = GET.replace(b"/v1/job", b"/v1/events/stream")
        reading = asyncio.create_task(ask(server.port, request))
        await asyncio.sleep(0.1)
        stage.lose("m-1", 10.0)
        stage.event_stream.close()
        answer = await reading
        assert b"event: decision" in answer and b"signal 9" in answer

    assert with_server(tmp_path, story) == []


def test_both_sides_prove_who_they_are(tmp_path: Path) -> None:
    make_set(tmp_path / "certs", ["boss", "guest", "host1"], coordinators=["boss"], api_clients=["guest"])

    def context(party: str | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.pem"))
        if party is not None:
            made.load_cert_chain(tmp_path / "certs" / party / "cert.pem", tmp_path / "certs" / party / "key.pem")
        return made

    async def story(server: ApiServer, stage: Stage) -> None:
        assert server.url.startswith("https://")
        assert (await ask(server.port, GET, context("guest"))).startswith(b"HTTP/1.1 200")
        for request in (GET, GET.replace(b"/v1/job", b"/health")):
            answer = await ask(server.port, request, context("host1"))
            assert answer.startswith(b"HTTP/1.1 403") and b"has the role agent, not api-client" in answer
        assert stage.api.metrics.refusals == {"certificate": 2}
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert not await ask(server.port, GET, context(None))
        with contextlib.suppress(ConnectionError):
            assert not await ask(server.port, GET)

    assert with_server(tmp_path, story, Certificates.read(tmp_path / "certs" / "boss")) == []


def test_it_follows_renewed_certificates(tmp_path: Path) -> None:
    make_set(tmp_path / "certs", ["boss", "guest"])
    certificates = Certificates.read(tmp_path / "certs" / "boss")

    def context() -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.pem"))
        made.load_cert_chain(tmp_path / "certs" / "guest" / "cert.pem", tmp_path / "certs" / "guest" / "key.pem")
        return made

    async def story(server: ApiServer, _: Stage) -> None:
        old = context()
        assert (await ask(server.port, GET, old)).startswith(b"HTTP/1.1 200")
        make_set(tmp_path / "certs", ["boss", "guest"])
        assert certificates.read_again()
        assert (await ask(server.port, GET, context())).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLError):
            await ask(server.port, GET, old)

    assert with_server(tmp_path, story, certificates) == []


def test_the_end_of_the_certificates_is_exported(tmp_path: Path) -> None:
    make_set(tmp_path / "certs", ["boss"])
    certificates = Certificates.read(tmp_path / "certs" / "boss")
    metrics = Metrics(Stage(tmp_path).interface, SystemClock(), certificates)
    for file, end in certificates.ends().items():
        assert metrics.value("understudy_certificate_expires_seconds", file=file) == end


def test_the_end_of_agents_certificates_and_of_those_for_etcd_is_exported(tmp_path: Path) -> None:
    make_set(tmp_path / "certs", ["etcd"])
    store, interface = Certificates.read(tmp_path / "certs" / "etcd", flag="--store-certs"), Stage(tmp_path).interface

    class Many:
        def __getattr__(self, name: str) -> Any:
            return getattr(interface, name)

        def certificate_ends(self) -> dict[HostId, int]:
            return {HostId("a"): 2_000_000_000, HostId("b"): 1_900_000_000}

    metrics = Metrics(cast(JobInterface, Many()), SystemClock(), None, store)
    name = "understudy_certificate_expires_seconds"
    assert metrics.value(name, file="agents/cert.pem") == 1_900_000_000
    assert metrics.value(name, file="store/cert.pem") == store.ends()["cert.pem"]


def test_all_interfaces_are_no_address_for_others(tmp_path: Path) -> None:
    make_set(tmp_path / "certs", ["boss"])
    certificates = Certificates.read(tmp_path / "certs" / "boss")

    async def story() -> None:
        for given, expected in (
            ("10.0.0.1", "https://10.0.0.1:"),
            ("[fd00::1]", "https://[fd00::1]:"),
            ("", "https://0"),
        ):
            server = ApiServer(Stage(tmp_path).api.app, print)
            await server.open("0.0.0.0:0", certificates, given)
            assert server.url.startswith(expected)
            await server.close()

    asyncio.run(story())


def test_beyond_this_host_needs_certificates(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        for address in ("0.0.0.0:0", "[::]:0", "somewhere:0"):
            with pytest.raises(SettingsError, match=r"--http .*--certs"):
                await ApiServer(stage.api.app, print).open(address, None)

    asyncio.run(story())


def test_a_port_that_is_taken_is_said_before_the_job_starts(tmp_path: Path) -> None:
    async def story(server: ApiServer, stage: Stage) -> None:
        with pytest.raises(SettingsError, match="in use"):
            await ApiServer(stage.api.app, print).open(f"127.0.0.1:{server.port}", None)

    with_server(tmp_path, story)


def test_the_failure_of_the_server_is_said_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(server_module._Server, "serve", fails)

    async def story(_: ApiServer, __: Stage) -> None:
        await asyncio.sleep(0.05)

    (said,) = with_server(tmp_path, story)
    assert "the job goes on" in said


def test_its_address_is_found_in_the_run_folder(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        request = ApiRequest(address="127.0.0.1:0", certificates=None, tokens=None, rules=Rules())
        audit = RecordLog(WrittenAtOnce(tmp_path / "audit.jsonl"))
        async with serving(request, stage.interface, tmp_path, print, audit) as server:
            assert json.loads((tmp_path / ADDRESS_FILE).read_text())["url"] == server.url
            assert (await ask(server.port, b"HEAD /health HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n")
        assert not (tmp_path / ADDRESS_FILE).exists()

    asyncio.run(story())
