"""The API of a coordinator that leads, waits for hosts, or stands by."""

import json
from pathlib import Path

import httpx
import pytest
from tests.api.stage import ACTOR, MONITOR, READER, Client, tokens
from tests.coordinator.lines import Place, attending, coordinator, play
from tests.ledger.made_up import WrittenAtOnce

from understudy.api.app import Settings, make_api
from understudy.api.audit import Audit
from understudy.api.feed import Feed
from understudy.api.job import ManyHosts
from understudy.coordinator.status import status
from understudy.foundation.clock import SystemClock
from understudy.ledger.writing import RecordLog
from understudy.protocol.reasons import Code

pytestmark = pytest.mark.timeout(180)


def client_of(place: Place, folder: Path) -> Client:
    door = ManyHosts(place.service, clock=SystemClock(), feed=Feed())
    pages = {"/status": lambda refused: status(place.service, refused)}
    audit = Audit(RecordLog(WrittenAtOnce(folder / "audit.jsonl")))
    api = make_api(door, audit, Settings(tokens=tokens(), pages=pages))
    return Client(httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app), base_url="http://job"), READER)


def test_one_that_stands_by_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with coordinator(leads=False) as place:
            place.service.leads = "10.0.0.1:29400"
            client = client_of(place, tmp_path)
            assert (await client.get("/health")).json() == {"healthy": True, "leading": False}
            job = (await client.get("/v1/job")).json()
            assert (job["leading"], job["leader"], job["stage"]) == (False, "10.0.0.1:29400", None)
            overview = (await client.get("/v1/overview")).json()
            assert overview == {"job": job, "members": [], "spares": [], "hosts": []}
            for answer in (
                await client.get("/v1/members"),
                await client.post("/v1/actions/abort-generation", {"reason": "x"}, ACTOR),
                await client.post(
                    "/v1/webhooks/generic",
                    {"source": "x", "status": "firing", "labels": {"rank": "0"}, "reason": "x"},
                    MONITOR,
                ),
            ):
                assert answer.status_code == 503 and "10.0.0.1:29400" in answer.json()["advice"]
            assert 'understudy_leading{training_job="job"} 0.0' in (await client.get("/metrics")).text

    play(story)
    assert not (tmp_path / "audit.jsonl").exists()


def test_one_that_leads(tmp_path: Path) -> None:
    async def story() -> None:
        async with coordinator() as place:
            client = client_of(place, tmp_path)
            waiting = await client.get("/v1/hosts")
            assert waiting.status_code == 503 and waiting.json()["reason"] == "no host has joined the job yet"
            async with attending(place, "a"), attending(place, "b"):
                hosts = (await client.get("/v1/hosts")).json()
                assert [(host["host"], host["ranks"], host["state"]) for host in hosts] == [
                    ("a", [0], "present"),
                    ("b", [1], "present"),
                ]
                assert (await client.get("/v1/job")).json()["stage"] == "founding"
                assert (await client.get("/status")).json()["connected"] == ["a", "b"]
                refused = await client.post("/v1/actions/drain", {"host": "a", "reason": "x"}, ACTOR)
                assert refused.status_code == 409 and refused.json()["code"] == Code.NO_FIRST_STEP
                assert "understudy status" in refused.json()["advice"]
                place.keeper.depose()
                assert (await client.get("/health")).json()["leading"] is False
                assert (await client.get("/v1/members")).status_code == 503

    play(story)
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(line)["outcome"] == "refused" and json.loads(line)["who"] == "actor"
