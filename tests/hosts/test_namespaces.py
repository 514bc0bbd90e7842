"""The hosts that the other tests use: real addresses, links that can be cut, and nothing left at the end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from understudy_testkit.faults.namespaces import NamespaceHost, hosts, why_not

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

_SERVE = "import http.server as s; s.HTTPServer(('', 8000), s.SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture
def two() -> Iterator[tuple[NamespaceHost, NamespaceHost]]:
    with hosts(("one", "other")) as made:
        yield made["one"], made["other"]


def reaches(host: NamespaceHost, other: NamespaceHost, seconds: float = 0.5) -> bool:
    script = f"import socket; socket.create_connection(('{other.address}', 8000), timeout={seconds})"
    return subprocess.run(host.command(sys.executable, "-c", script), capture_output=True, check=False).returncode == 0


def serve(host: NamespaceHost, asker: NamespaceHost) -> "subprocess.Popen[bytes]":
    server = subprocess.Popen(host.command(sys.executable, "-c", _SERVE), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not reaches(asker, host):
        assert time.monotonic() < deadline, "the server does not answer"
    return server


def test_a_link_is_cut_and_heals(two: tuple[NamespaceHost, NamespaceHost]) -> None:
    one, other = two
    server = serve(one, other)
    one.cut()
    assert not reaches(other, one) and server.poll() is None
    one.heal()
    assert reaches(other, one, seconds=5.0)
    assert one.kill() >= 1
    assert server.wait(10) == -9


def test_a_link_becomes_slow(two: tuple[NamespaceHost, NamespaceHost]) -> None:
    one, other = two
    serve(one, other)
    try:
        one.disturb(delay=2.0)
    except RuntimeError as error:
        pytest.skip(f"this kernel has no netem: {error}")
    assert not reaches(other, one, seconds=1.0)


def test_nothing_is_left() -> None:
    with hosts(("one",)) as made:
        sleeper = subprocess.Popen(made["one"].command("sleep", "1000"))
        namespace = made["one"].namespace
    assert sleeper.wait(10) == -9
    assert namespace not in os.listdir("/var/run/netns")
