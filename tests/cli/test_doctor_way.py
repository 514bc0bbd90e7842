"""Two doctors on one host: one waits, the other examines, and nobody else is heard."""

import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from understudy.cli.examination import listening, measuring, peer_connection
from understudy.cli.examination.finding import Finding
from understudy.cli.examination.measuring import Effort, Way
from understudy.cli.examination.peer_connection import PeerConnection
from understudy.cli.examination.route import Route
from understudy.cli.main import main
from understudy.errors import WireError
from understudy.files.private import write_private

TOKEN = "a token of both sides"
QUICK = Effort(first_round=1 << 12, largest_round=1 << 20, most=4 << 20, telling=0.02, enough=0.02)
VERSIONS = {"python": "3.11.7", "torch": "2.15.0"}
WAY = Way(
    peer="10.0.0.2:1",
    route=Route(local="10.0.0.1", interface="eth0"),
    round_trip=0.0001,
    there=1e9,
    back=1.1e9,
    offset=0.0,
    uncertain=0.0,
    versions={},
)


class Waiting:
    """A listener in a thread of its own."""

    def __init__(self, token: str, limit: float, wall: Callable[[], float]) -> None:
        self._open = ExitStack()
        self._listener = self._open.enter_context(listening.opened("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.outcome: Finding | None = None
        self._thread = threading.Thread(target=self._run, args=(token, limit, wall))
        self._thread.start()

    def _run(self, token: str, limit: float, wall: Callable[[], float]) -> None:
        self.outcome = listening.wait_for_examination(self._listener, token, limit, VERSIONS, wall)

    def end_by_examination(self) -> Finding:
        assert isinstance(measuring.examine("127.0.0.1", self.port, TOKEN, QUICK), Way)
        return self.end()

    def end(self) -> Finding:
        self._thread.join(10)
        self._open.close()
        assert self.outcome is not None
        return self.outcome


def waiting(token: str = TOKEN, limit: float = 30.0, wall: Callable[[], float] = time.time) -> Waiting:
    return Waiting(token, limit, wall)


@contextmanager
def admitted() -> Iterator[tuple[PeerConnection, Waiting]]:
    """A line that has been let in, to ask what it likes."""
    other = waiting()
    with socket.create_connection(("127.0.0.1", other.port)) as connection:
        own = PeerConnection(connection, 5.0)
        peer_connection.introduce(own, TOKEN)
        yield own, other


def test_the_way_is_measured_in_both_directions() -> None:
    other = waiting(wall=lambda: time.time() + 7.0)
    way = measuring.examine("127.0.0.1", other.port, TOKEN, QUICK)
    assert isinstance(way, Way)
    assert way.route == Route(local="127.0.0.1", interface="lo") and way.versions == VERSIONS
    assert 0 < way.round_trip < 1 and way.bandwidth == min(way.there, way.back) > 0
    assert way.offset == pytest.approx(7.0, abs=0.5)
    assert other.end().good


def test_a_measurement_ends_by_its_amount_too() -> None:
    other = waiting()
    patient = Effort(first_round=1 << 12, largest_round=1 << 14, most=1 << 16, telling=10.0, enough=10.0)
    began = time.monotonic()
    assert isinstance(measuring.examine("127.0.0.1", other.port, TOKEN, patient), Way)
    assert time.monotonic() - began < 5 and other.end().good


@pytest.mark.parametrize("theirs", ["another token, as long", ""])
def test_whoever_has_another_token_is_refused_and_the_waiting_goes_on(theirs: str) -> None:
    other = waiting()
    refused = measuring.examine("127.0.0.1", other.port, theirs, QUICK)
    assert isinstance(refused, Finding) and refused.wrong
    assert "token" in refused.what and "--token-file" in refused.advice
    assert isinstance(measuring.examine("127.0.0.1", other.port, TOKEN, QUICK), Way)
    outcome = other.end()
    assert outcome.good and "before that 1 refused" in outcome.what


def test_a_listener_without_the_token_is_not_believed() -> None:
    """It can play our own proof back to us, and that is not its proof."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"understudy doctor 1\n" + bytes(32))
                answer = PeerConnection(connection, 5.0).take(64)
                connection.sendall(answer[32:])

        thread = threading.Thread(target=pretend)
        thread.start()
        found = measuring.examine("127.0.0.1", server.getsockname()[1], TOKEN, QUICK)
        thread.join(5)
    assert isinstance(found, Finding) and found.wrong and "does not know the token" in found.what


def test_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = measuring.examine("127.0.0.1", port, TOKEN, QUICK)
    assert isinstance(found, Finding) and found.wrong and "doctor --listen" in found.advice


def test_somebody_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def other_program() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP ready, and more text than a greeting has\n")

        thread = threading.Thread(target=other_program)
        thread.start()
        found = measuring.examine("127.0.0.1", server.getsockname()[1], TOKEN, QUICK)
        thread.join(5)
    assert isinstance(found, Finding) and found.wrong and "another program" in found.what


def test_a_way_that_carries_nothing_is_said_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(measuring, "send_round", stuck)
    other = waiting()
    found = measuring.examine("127.0.0.1", other.port, TOKEN, QUICK)
    assert isinstance(found, Finding) and found.wrong and "did not get through" in found.what
    monkeypatch.undo()
    assert "1 broke off" in other.end_by_examination().what


@pytest.mark.parametrize(
    "request_bytes",
    [
        struct.pack(">cI", b"d", peer_connection.LARGEST_ROUND + 1),
        struct.pack(">cI", b"u", 2**32 - 1),
        struct.pack(">cI", b"x", 0),
    ],
)
def test_what_is_too_much_or_unknown_ends_the_line(request_bytes: bytes) -> None:
    with admitted() as (own, other):
        own.send(request_bytes)
        with pytest.raises(ConnectionError):
            own.take(1)
    assert "1 broke off" in other.end_by_examination().what


def test_requests_end_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connection, "MOST_REQUESTS", 3)
    with admitted() as (own, other):
        for _ in range(3):
            peer_connection.ask_time(own)
        with pytest.raises(ConnectionError):
            peer_connection.ask_time(own)
    monkeypatch.undo()
    assert "1 broke off" in other.end_by_examination().what


def test_all_bytes_together_end_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connection, "MOST_BYTES", 1000)
    with admitted() as (own, other):
        peer_connection.fetch_round(own, 600)
        with pytest.raises(ConnectionError):
            peer_connection.fetch_round(own, 600)
    monkeypatch.undo()
    assert "1 broke off" in other.end_by_examination().what


def test_a_table_that_is_none_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        for answer in (struct.pack(">H", 65535), struct.pack(">H", 2) + b"[]"):
            theirs.sendall(answer)
            with pytest.raises(WireError):
                peer_connection.ask_versions(_plain(ours))


def _plain(connection: socket.socket) -> PeerConnection:
    """A Unix socket has no setting for small packets."""
    made = PeerConnection.__new__(PeerConnection)
    made._socket, made._deadline, made._scrap = connection, time.monotonic() + 5, bytearray(1024)
    return made


def test_a_silent_guest_costs_only_its_greeting_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "GREETING_TIMEOUT", 0.05)
    other = waiting()
    with socket.create_connection(("127.0.0.1", other.port)):
        assert isinstance(measuring.examine("127.0.0.1", other.port, TOKEN, QUICK), Way)
    assert "before that 1 refused" in other.end().what


def test_the_waiting_ends() -> None:
    outcome = waiting(limit=0.05).end()
    assert outcome.wrong and "no peer" in outcome.what and outcome.advice


def test_a_far_peer_and_a_lopsided_way_are_noted() -> None:
    assert all(finding.good for finding in measuring.judge(WAY))
    trip, bandwidth = measuring.judge(dataclasses.replace(WAY, round_trip=0.2, back=1e8))
    assert not trip.good and not bandwidth.good and "10 times slower" in bandwidth.advice


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERSTUDY_JOB_TOKEN", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(measuring, "Effort", lambda: QUICK)


@pytest.mark.usefixtures("quick")
def test_the_command_examines_a_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "token"
    write_private(secret, TOKEN.encode() + b"\n")
    other = waiting()
    assert main(["doctor", "--peer", f"127.0.0.1:{other.port}", "--token-file", str(secret)]) == 0
    output = capsys.readouterr().out
    for words in ("interface lo", "round trip", "bandwidth", "wall clock", "has "):
        assert words in output
    assert other.end().good


@pytest.mark.usefixtures("quick")
def test_the_command_waits_for_one_examination(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(main(["doctor", "--listen", f"127.0.0.1:{port}", "--wait", "10"]))
    )
    thread.start()
    found: Way | Finding = measuring.examine("127.0.0.1", port, "", QUICK)
    until = time.monotonic() + 5
    while not isinstance(found, Way) and time.monotonic() < until:
        time.sleep(0.02)
        found = measuring.examine("127.0.0.1", port, "", QUICK)
    thread.join(10)
    assert isinstance(found, Way) and codes == [0]
    output = capsys.readouterr().out
    assert f"doctor --peer 127.0.0.1:{port}" in output and "ok    examined from 127.0.0.1" in output


@pytest.mark.usefixtures("quick")
def test_a_peer_that_cannot_be_reached_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["doctor", "--peer", f"127.0.0.1:{port}"]) == 1
    assert f"BAD   127.0.0.1:{port} cannot be reached" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "--token-file"),
        (["--peer", "10.0.0.1:1"], "--token-file"),
        (["--peer", "10.0.0.1"], "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--peer", "127.0.0.1:1"], "one host waits"),
        (["--listen", "127.0.0.1:0", "--wait", "0"], "--wait"),
        (["--regroup-timeout", "0"], "--regroup-timeout"),
        (["--state-gb", "inf"], "--state-gb"),
        (["--state-gb", "nan"], "--state-gb"),
    ],
)
def test_flags_that_cannot_be_used(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.out == ""
