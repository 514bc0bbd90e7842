"""Clients that connect and never send a request: they cost little, and those who do send one are answered."""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.api.stage import READER

from understudy.wire.issuing import make_set

ROOT = Path(__file__).parents[2]
FLOOD = 2000
SOON = 2.0  # seconds for an answer to somebody honest
pytestmark = [pytest.mark.timeout(180), pytest.mark.processes]


@dataclass
class Flooded:
    """The server in its process, as the outside sees it."""

    process: subprocess.Popen[str]
    port: int
    probes: int
    context: ssl.SSLContext
    page: str
    log: Path

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def ask(self) -> float:
        """Seconds until an honest client with a certificate has its answer."""
        began = time.monotonic()
        with (
            socket.create_connection(("127.0.0.1", self.port), SOON) as plain,
            self.context.wrap_socket(plain, server_hostname="understudy") as secure,
        ):
            secure.sendall(f"GET {self.page} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READER}\r\n\r\n".encode())
            assert secure.recv(100).startswith(b"HTTP/1.1 200")
        return time.monotonic() - began

    def probe(self) -> float:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.probes), SOON) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert plain.recv(100).startswith(b"HTTP/1.1 200")
        return time.monotonic() - began


@pytest.fixture(params=["api", "pages"])
def flooded(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Flooded]:
    make_set(tmp_path / "certs", ["boss", "guest"])
    context = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.pem"))
    context.load_cert_chain(tmp_path / "certs" / "guest" / "cert.pem", tmp_path / "certs" / "guest" / "key.pem")
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.api.flooded", str(tmp_path), request.param],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port, probes = map(int, process.stdout.readline().split())
            page = "/v1/job" if request.param == "api" else "/health"
            yield Flooded(process, port, probes, context, page, log)
        finally:
            process.kill()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FLOOD + 500:
        pytest.skip(f"needs {FLOOD} open connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(stack: contextlib.ExitStack, port: int, source: str, word: bytes) -> None:
    with contextlib.suppress(OSError):  # not taken any more: that is for the server to decide
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5.0, (source, 0)))
        client.sendall(word)


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize(
    ("word", "addresses"),
    [(b"", 1), (b"\x16\x03\x01\x02\x00\x01", 40)],
    ids=["they say nothing", "they begin a handshake, from many addresses"],
)
def test_idle_connections_are_bounded_and_others_are_served(flooded: Flooded, word: bytes, addresses: int) -> None:
    assert flooded.ask() < SOON
    before = flooded.megabytes()
    slowest = 0.0
    with contextlib.ExitStack() as stack:
        for number in range(FLOOD):
            connect(stack, flooded.port, f"127.0.1.{1 + number % addresses}", word)
            if number % 250 == 249:
                assert flooded.descriptors() < 700
                slowest = max(slowest, flooded.ask(), flooded.probe())
        assert flooded.megabytes() - before < 220
        slowest = max(slowest, flooded.ask(), flooded.probe())
    assert slowest < SOON
    assert flooded.process.poll() is None and "Traceback" not in flooded.log.read_text()


@pytest.mark.usefixtures("many_descriptors")
def test_a_flood_of_the_probes_does_not_reach_the_others(flooded: Flooded) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(600):
            connect(stack, flooded.probes, "127.0.0.1", b"GET /hea")
            if number % 200 == 199:
                assert flooded.descriptors() < 200
                assert max(flooded.ask(), flooded.probe()) < SOON
    assert "Traceback" not in flooded.log.read_text()
