"""The pages: what they show, what may be asked, and every way to be refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.stage import ACTOR, MONITOR, READER, Client, Stage, play

from understudy.api.limits import Limits
from understudy.foundation.token_bucket import Rate
from understudy.protocol import requests as rq
from understudy.protocol.reasons import Code, because

pytestmark = pytest.mark.timeout(180)
MIGRATE = {"ranks": [1], "reason": "its fan is loud"}


def test_what_is_shown(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        job = (await client.get("/v1/job")).json()
        assert (job["job"], job["leading"], job["stage"], job["generation"]) == ("job", True, "training", 1)
        assert (job["committed_step"], job["spares_warm"], job["ranks_up"]) == (6, 1, 2)
        assert job["predicted_recovery_seconds"] is None and job["last_recovery"] is None
        members = (await client.get("/v1/members")).json()
        assert [(one["rank"], one["member"], one["step"]) for one in members] == [(0, "m-0", 7), (1, "m-1", 6)]
        assert [one["member"] for one in (await client.get("/v1/spares")).json()] == ["m-2"]
        hosts = (await client.get("/v1/hosts")).json()
        assert [(one["host"], one["state"], one["ranks"]) for one in hosts] == [("this host", "present", [0, 1])]
        spares = (await client.get("/v1/spares")).json()
        overview = (await client.get("/v1/overview")).json()
        assert overview == {"job": job, "members": members, "spares": spares, "hosts": hosts}

    play(stage, story)


def recover(stage: Stage) -> None:
    stage.lose("m-1", 10.0)
    stage.report("m-0", 10.1, 2, 6)
    stage.prepare("m-2", 10.5, 2)
    stage.resume("m-0", 10.8, 2, regroup=0.1)
    stage.resume("m-2", 11.0, 2, received=100, transfer=0.2)
    stage.clock.advance_to(12.0)


def test_a_recovery_is_shown_with_its_phases(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        recover(stage)
        job = (await client.get("/v1/job")).json()
        assert job["recoveries"] == 1 and job["predicted_recovery_seconds"] == pytest.approx(1.0)
        (recovery,) = (await client.get("/v1/recoveries")).json()
        assert recovery["swaps"] == [[1, "m-1", "m-2"]] and recovery["phases"]["total"] == pytest.approx(1.0)
        assert recovery["seconds_ago"] == pytest.approx(1.0) and recovery["received_bytes"] == 100
        events = (await client.get("/v1/events")).json()
        assert [event["number"] for event in events["events"]] == list(range(1, events["newest"] + 1))
        assert "swap" in [event["kind"] for event in events["events"]]
        later = (await client.get(f"/v1/events?after={events['newest'] - 1}")).json()
        assert len(later["events"]) == 1

    play(stage, story)


def test_events_as_a_stream(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        reading = asyncio.create_task(client.get("/v1/events/stream?after=0"))
        await asyncio.sleep(0)
        recover(stage)
        stage.feed.close()
        answer = await reading
        assert answer.headers["content-type"].startswith("text/event-stream")
        kinds = [line.split(": ")[1] for line in answer.text.splitlines() if line.startswith("event: ")]
        assert kinds[-1] == "recovery" and len(kinds) == stage.feed.newest
        again = await client.http.get(
            "/v1/events/stream",
            headers={"Authorization": f"Bearer {READER}", "Last-Event-ID": str(stage.feed.newest - 1)},
        )
        assert again.text.count("event: ") == 1

    play(stage, story)


@pytest.mark.parametrize(
    ("page", "body", "request_"),
    [
        ("migrate", MIGRATE, rq.MoveRanks),
        ("drain", {"host": "this host", "reason": "x"}, rq.DrainHost),
        ("undrain", {"host": "this host", "reason": "x"}, rq.UndrainHost),
        ("replace", {"rank": 0, "member": "m-0", "reason": "x"}, rq.ReplaceRank),
        ("abort-generation", {"reason": "x"}, rq.AbortGeneration),
        ("spares", {"host": "this host", "spares": 2, "reason": "x"}, rq.KeepSpares),
    ],
)
def test_an_action_becomes_a_request(tmp_path: Path, page: str, body: dict[str, Any], request_: type) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        dry = await client.post(f"/v1/actions/{page}", {**body, "dry_run": True}, ACTOR)
        assert dry.status_code == 200 and dry.json()["outcome"] == "would be accepted" and not stage.machine.asked
        answer = await client.post(f"/v1/actions/{page}", body, ACTOR)
        assert answer.status_code == 200, answer.text
        assert answer.json()["outcome"] == "accepted" and len(answer.json()["decisions"]) == 1
        (asked,) = stage.machine.asked
        assert type(asked) is request_ and asked.reason == body["reason"]
        stage.machine.why_not = because(Code.TOO_FEW_HEALTHY, count=1, world=2)
        refused = await client.post(f"/v1/actions/{page}", body, ACTOR)
        assert refused.status_code == 409 and refused.json()["code"] == Code.TOO_FEW_HEALTHY
        assert "--min-healthy" in refused.json()["reason"] and refused.json()["advice"]
        dry = await client.post(f"/v1/actions/{page}", {**body, "dry_run": True}, ACTOR)
        assert dry.status_code == 200 and dry.json()["outcome"] == "would be refused"
        assert dry.json()["code"] == Code.TOO_FEW_HEALTHY
        assert len(stage.machine.asked) == 1

    play(stage, story)
    outcomes = [(line["who"], line["action"], line["outcome"]) for line in stage.audit()]
    words = ("would be accepted", "accepted", "refused", "would be refused")
    assert outcomes == [("actor", page, word) for word in words]
    assert stage.audit()[1]["asked"]["reason"] == body["reason"]


def test_a_key_acts_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        answers = await asyncio.gather(
            *(client.post("/v1/actions/migrate", MIGRATE, ACTOR, key="k1") for _ in range(5))
        )
        assert len({answer.text for answer in answers}) == 1 and answers[0].status_code == 200
        assert len(stage.machine.asked) == 1
        other = await client.post("/v1/actions/migrate", {**MIGRATE, "ranks": [0]}, ACTOR, key="k1")
        assert other.status_code == 409 and "Idempotency-Key" in other.json()["reason"]
        elsewhere = await client.post("/v1/actions/abort-generation", {"reason": "x"}, ACTOR, key="k1")
        assert elsewhere.status_code == 409
        assert len(stage.machine.asked) == 1
        stage.clock.advance_to(10_000.0)
        await client.post("/v1/actions/migrate", MIGRATE, ACTOR, key="k1")
        assert len(stage.machine.asked) == 2  # a key is kept for an hour

    play(stage, story)
    assert [line["key"] for line in stage.audit()] == ["k1", "k1"]


@pytest.mark.parametrize(
    ("token", "path", "code"),
    [
        (None, "/v1/job", 401),
        ("no-such-token-0123456789", "/v1/job", 401),
        (READER + "x", "/v1/job", 401),
        (MONITOR, "/v1/job", 403),
        (MONITOR, "/metrics", 403),
        (None, "/metrics", 401),
        (None, "/v1/openapi.json", 401),
        (None, "/v1/nothing", 401),
        (READER, "/v1/nothing", 404),
        (READER, "/metrics", 200),
        (ACTOR, "/v1/job", 200),
        (None, "/health", 200),
    ],
)
def test_who_may_read(tmp_path: Path, token: str | None, path: str, code: int) -> None:
    async def story(client: Client) -> None:
        client.token = token
        answer = await client.get(path)
        assert answer.status_code == code
        if code >= 400:
            assert answer.json()["reason"] and answer.json()["advice"]

    play(Stage(tmp_path), story)


@pytest.mark.parametrize("token", [None, READER, MONITOR, "forged-token-0123456789"])
def test_who_may_not_act(tmp_path: Path, token: str | None) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        client.token = token
        for page in ("migrate", "replace", "abort-generation"):
            answer = await client.post(f"/v1/actions/{page}", MIGRATE)
            assert answer.status_code == (401 if token is None or token.startswith("forged") else 403)

    play(stage, story)
    assert not stage.machine.asked and not stage.audit()


def test_without_tokens_everybody_may_look_and_nobody_may_ask(tmp_path: Path) -> None:
    stage = Stage(tmp_path, open_=True)

    async def story(client: Client) -> None:
        client.token = None
        assert (await client.get("/v1/job")).status_code == 200
        answer = await client.post("/v1/actions/migrate", MIGRATE)
        assert answer.status_code == 403 and "--http-tokens" in answer.json()["advice"]
        assert (await client.post("/v1/webhooks/generic", {})).status_code == 403

    play(stage, story)
    assert not stage.machine.asked


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"ranks": [1], "reason": "x", "more": 1}',
        b'{"ranks": ["1"], "reason": "x"}',
        b'{"ranks": [true], "reason": "x"}',
        b'{"ranks": [1.5], "reason": "x"}',
        b'{"ranks": [-1], "reason": "x"}',
        b'{"ranks": [], "reason": "x"}',
        b'{"ranks": [1], "reason": ""}',
        b'{"ranks": [1], "reason": "a\\nb"}',
        b'{"ranks": [1], "reason": "\\ud800"}',
        b'{"ranks": [1], "reason": "\\u009b2J"}',
        b'{"ranks": [1], "reason": "\\u2028"}',
        b'{"ranks": [1], "reason": "x", "\\ud800": 1}',
        b'{"ranks": [1], "reason": "x", "dry_run": "yes"}',
        b'{"ranks": [1], "reason": NaN}',
        b'{"ranks": [1' + b"0" * 5000 + b'], "reason": "x"}',
        json.dumps({"ranks": list(range(2000)), "reason": "x"}).encode(),
        json.dumps({"ranks": [1], "reason": "x" * 501}).encode(),
    ],
)
def test_malformed_bodies(tmp_path: Path, body: bytes) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        answer = await client.post("/v1/actions/migrate", body, ACTOR)
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["reason"] and answer.json()["advice"]

    play(stage, story)
    assert not stage.machine.asked


def test_a_body_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(largest_body=1000))
    sent = 0

    async def chunks() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 100
            yield b" " * 100

    async def story(client: Client) -> None:
        answer = await client.post("/v1/actions/migrate", b" " * 1001, ACTOR)
        assert answer.status_code == 413
        headers = {"Authorization": f"Bearer {ACTOR}"}
        answer = await client.http.post("/v1/actions/migrate", content=chunks(), headers=headers)
        assert answer.status_code == 413 and sent <= 1200

    play(stage, story)


def test_a_flood_of_probes_from_one_address_leaves_the_others_their_answers(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(read=Rate(3, 1), at_once=1))

    async def probe(address: str, **more: Any) -> int:
        transport = httpx.ASGITransport(app=stage.api.app, client=(address, 77))
        async with httpx.AsyncClient(transport=transport, base_url="http://job") as http:
            return (await http.request("GET", "/health", **more)).status_code

    async def slowly() -> AsyncIterator[bytes]:
        await asyncio.sleep(60.0)
        yield b"x"

    async def story(client: Client) -> None:
        assert [await probe("10.0.0.1") for _ in range(5)] == [200, 200, 200, 429, 429]
        assert await probe("10.0.0.2") == 200
        assert (await client.get("/v1/job")).status_code == 200
        assert await asyncio.wait_for(probe("10.0.0.3", content=slowly()), 5.0) == 200, "its body is not waited for"

    play(stage, story)


def test_a_caller_whose_requests_do_not_end_leaves_room_for_others(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(at_once=4, at_once_each=2, webhook=Rate(1000, 1000)))
    ended = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        await ended.wait()
        yield b"{}"

    async def story(client: Client) -> None:
        headers = {"Authorization": f"Bearer {MONITOR}", "Content-Type": "application/json"}
        page = "/v1/webhooks/alertmanager"
        slow = [asyncio.create_task(client.http.post(page, content=slowly(), headers=headers)) for _ in range(2)]
        while (refused := await client.post(page, {}, MONITOR)).status_code != 429:
            await asyncio.sleep(0)
        assert "at once" in refused.text
        assert (await client.get("/v1/job")).status_code == 200
        ended.set()
        assert [(await one).status_code for one in slow] == [422, 422]
        assert (await client.post(page, {}, MONITOR)).status_code == 422

    play(stage, story)


def test_too_often(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(act=Rate(2, 0.5), read=Rate(3, 1), stranger=Rate(2, 1)))

    async def story(client: Client) -> None:
        codes = [(await client.post("/v1/actions/migrate", MIGRATE, ACTOR)).status_code for _ in range(4)]
        assert codes == [200, 200, 429, 429]
        assert (await client.post("/v1/actions/migrate", MIGRATE, ACTOR)).headers["retry-after"] == "2"
        stage.clock.advance_to(2.0)
        assert (await client.post("/v1/actions/migrate", MIGRATE, ACTOR)).status_code == 200
        codes = [(await client.get("/v1/job", "forged-token-0123456789")).status_code for _ in range(4)]
        assert codes == [401, 401, 429, 429]
        assert (await client.get("/v1/job")).status_code == 200  # whoever is known is not kept out by strangers

    play(stage, story)
    assert len(stage.machine.asked) == 3


def test_metrics(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def story(client: Client) -> None:
        recover(stage)
        await client.post("/v1/actions/migrate", MIGRATE, ACTOR)
        await client.get("/v1/job", "forged-token-0123456789")
        text = (await client.get("/metrics")).text
        for line in (
            'understudy_generation{training_job="job"} 2.0',
            'understudy_leading{training_job="job"} 1.0',
            'understudy_finished{training_job="job"} 0.0',
            'understudy_degraded{training_job="job"} 0.0',
            'understudy_ranks{standing="active",training_job="job"} 2.0',
            'understudy_ranks{standing="absent",training_job="job"} 0.0',
            'understudy_spares{state="warm",training_job="job"} 0.0',
            'understudy_spares{state="wanted",training_job="job"} 1.0',
            'understudy_recoveries_total{kind="swap",training_job="job"} 1.0',
            'understudy_recovery_seconds_count{phase="total",training_job="job"} 1.0',
            'understudy_decisions_total{kind="swap",training_job="job"} 1.0',
            'understudy_actions_total{action="migrate",outcome="accepted",training_job="job"} 1.0',
            'understudy_http_refusals_total{reason="token",training_job="job"} 1.0',
            'understudy_stage{stage="training",training_job="job"} 1.0',
        ):
            assert line in text.splitlines(), f"{line} is missing"

    play(stage, story)


def test_the_description_is_published(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        described = (await client.get("/v1/openapi.json")).json()
        assert set(described["paths"]) == {
            *(f"/v1/{page}" for page in ("job", "overview", "members", "spares", "hosts", "recoveries")),
            *("/v1/events", "/v1/events/stream"),
            *(
                f"/v1/actions/{page}"
                for page in ("migrate", "drain", "undrain", "replace", "abort-generation", "spares")
            ),
            *(f"/v1/webhooks/{page}" for page in ("alertmanager", "generic")),
        }

    play(Stage(tmp_path), story)
