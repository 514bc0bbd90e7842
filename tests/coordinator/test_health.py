"""The two pages: right answers to right requests, and a refusal to everything else."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.coordinator.lines import attending, coordinator, play

from understudy.coordinator import health as http
from understudy.coordinator.health import HealthServer
from understudy.coordinator.probes import serving_probes
from understudy.coordinator.status import health, is_ready, status
from understudy.errors import SettingsError
from understudy.wire.connections import TOO_MANY

pytestmark = pytest.mark.timeout(180)
GOOD = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Target:
    loop: asyncio.AbstractEventLoop
    server: HealthServer
    port: int

    def send(self, request: bytes, *, end: bool = True) -> bytes:
        return self.loop.run_until_complete(asyncio.wait_for(self._send(request, end), 10.0))

    async def _send(self, request: bytes, end: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            if end:
                writer.write_eof()
            return await reader.read()
        except ConnectionError:
            return b""  # it did not want to read all of it
        finally:
            writer.close()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    loop = asyncio.new_event_loop()
    server = HealthServer({"/health": lambda: {"healthy": True}})
    try:
        yield Target(loop, server, loop.run_until_complete(server.open("127.0.0.1:0", None)))
    finally:
        loop.run_until_complete(server.close())
        loop.close()


def code_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_a_page(target: Target) -> None:
    head, _, body = target.send(GOOD, end=False).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"application/json" in head
    assert json.loads(body) == {"healthy": True}
    assert target.send(b"HEAD /health?x=1 HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /health/../status HTTP/1.1\r\n\r\n", 404),
        (b"POST /health HTTP/1.1\r\n\r\n", 405),
        (b"GET /health HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET /health HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (b"GET /health\r\n\r\n", 400),
        (b"GET /health HTTP/2\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n", 400),
        (b"", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_what_is_no_request_for_a_page_is_refused_and_counted(target: Target, request_: bytes, code: int) -> None:
    before = sum(target.server.refused.values())
    answer = target.send(request_)
    assert not answer or code_of(answer) == code
    assert sum(target.server.refused.values()) == before + 1


words = st.sampled_from(
    [
        b"GET",
        b"HEAD",
        b"POST",
        b" ",
        b"/",
        b"/health",
        b"HTTP/1.1",
        b"HTTP/",
        b"\r\n",
        b"\n",
        b"\r\n\r\n",
        b"\0",
        b":",
        b"%2e",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300) | st.lists(words | st.binary(max_size=5), max_size=20).map(b"".join))
def test_nonsense(target: Target, request_: bytes) -> None:
    answer = target.send(request_)
    assert not answer or code_of(answer) in (200, 400, 404, 405, 431)
    assert code_of(target.send(GOOD)) == 200


def test_who_says_nothing_is_not_waited_for(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TIMEOUT", 0.1)
    before = target.server.refused["no request in time"]
    assert target.send(b"GET /hea", end=False) == b""
    assert target.server.refused["no request in time"] == before + 1


def test_slow_ones_do_not_keep_others_from_an_answer(target: Target) -> None:
    async def story() -> bytes:
        slow = [await asyncio.open_connection("127.0.0.1", target.port) for _ in range(150)]
        for _, writer in slow:
            writer.write(b"GET /hea")
        answer = await target._send(GOOD, False)
        for _, writer in slow:
            writer.close()
        return answer

    before = target.server.refused[TOO_MANY]
    assert code_of(target.loop.run_until_complete(asyncio.wait_for(story(), 4.0))) == 200
    assert target.server.refused[TOO_MANY] - before >= 100


def test_what_the_pages_say() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a"), attending(place, "b"):
            place.service.refused["unauthorised"] += 2
            said: Any = json.loads(json.dumps(status(place.service, {"not found": 1})))
            assert (said["job"], said["leading"], said["term"], said["world_size"]) == ("job", True, 1, 2)
            assert said["generation"] == 1 and said["stage"] == "founding" and said["connected"] == ["a", "b"]
            host = {"state": "present", "ranks": [0], "steps": None, "spares": 1}
            assert said["hosts"]["a"] == host and said["store"] == "a"
            assert (said["committed_step"], said["absent_ranks"]) == (None, [])
            assert said["refused"] == {"grpc": {"unauthorised": 2}, "http": {"not found": 1}}
            assert health(place.service) == {"healthy": True, "leading": True}
            place.state_store.depose()
            assert health(place.service) == {"healthy": True, "leading": False}

    play(story)


# -- for probes --------------------------------------------------------------------------------------------------------


def test_probes_need_no_certificate_and_learn_no_details() -> None:
    said: list[str] = []
    ready = [False]

    async def get(port: int, page: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def story() -> None:
        async with serving_probes("0.0.0.0:0", lambda: ready[0], said.append):
            port = int(said[0].rpartition(" ")[2])
            assert b" 200 " in await get(port, "/health") and b" 503 " in await get(port, "/ready")
            ready[0] = True
            answer = await get(port, "/ready")
            assert b" 200 " in answer and answer.endswith(b'{"ready": true}\n')
            assert b" 404 " in await get(port, "/status")
            with pytest.raises(SettingsError, match=r"--health .*in use"):
                async with serving_probes(f"0.0.0.0:{port}", lambda: True, said.append):
                    pass
        async with serving_probes(None, lambda: True, said.append):
            assert len(said) == 1

    asyncio.run(asyncio.wait_for(story(), 20.0))


def test_ready_is_who_leads_or_knows_who_does() -> None:
    async def story() -> None:
        async with coordinator() as place:
            assert is_ready(place.service)
            place.state_store.depose()
            assert not is_ready(place.service)
        async with coordinator(leads=False) as place:
            place.service.leads = ""
            assert not is_ready(place.service)
            place.service.leads = "10.0.0.1:29400"
            assert is_ready(place.service)

    play(story)
