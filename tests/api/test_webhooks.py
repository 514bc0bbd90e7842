"""Posts of monitors: each alert acts at most once, and never when it is late."""

import asyncio
import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.api.stage import ACTOR, MONITOR, NOON, Client, Stage, play

from understudy.api.limits import Limits
from understudy.api.rules import Rule, RuleAction, Rules
from understudy.foundation.token_bucket import Rate
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import MoveRanks, ReplaceRank

pytestmark = pytest.mark.timeout(180)
RULES = Rules(rules=(Rule(alert="Xid", action=RuleAction.ABORT), Rule(alert="Hot", action=RuleAction.DRAIN)))
PAGE = "/v1/webhooks/alertmanager"


def time_at(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(NOON + seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def alert(name: str = "Xid", rank: str = "1", at: float = 50.0, **changes: Any) -> dict[str, Any]:
    plain = {
        "status": "firing",
        "labels": {"alertname": name, "rank": rank, "severity": "critical"},
        "annotations": {"summary": "the device fell off the bus"},
        "startsAt": time_at(at),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": f"f-{name}-{rank}",
    }
    return {**plain, **changes}


def post(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{alertname="Xid"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "understudy",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": list(alerts),
    }


def staged(folder: Path, limits: Limits | None = None) -> Stage:
    stage = Stage(folder, rules=RULES, limits=limits)
    stage.begin()
    stage.clock.advance_to(60.0)
    return stage


def outcomes(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["outcome"] for one in answer.json()["alerts"]]


def test_an_alert_acts_once(tmp_path: Path) -> None:
    stage = staged(tmp_path)

    async def story(client: Client) -> None:
        client.token = MONITOR
        assert outcomes(await client.post(PAGE, post(alert(), alert("Hot", "0")))) == ["accepted", "accepted"]
        replace, move = stage.machine.asked
        assert isinstance(replace, ReplaceRank) and (replace.rank, replace.member) == (1, "m-1")
        assert isinstance(move, MoveRanks) and move.ranks == (0,)
        assert "fell off the bus" in replace.reason
        assert outcomes(await client.post(PAGE, post(alert()))) == ["duplicate"]
        assert outcomes(await client.post(PAGE, post(alert(startsAt=time_at(50.0).replace("Z", "+00:00"))))) == [
            "duplicate"
        ]
        assert outcomes(await client.post(PAGE, post(alert(status="resolved")))) == ["resolved"]
        assert outcomes(await client.post(PAGE, post(alert(at=55.0)))) == ["accepted"]  # it fires anew
        assert len(stage.machine.asked) == 3

    play(stage, story)
    assert [line["outcome"] for line in stage.audit()] == ["accepted"] * 3


def test_concurrent_posts_act_once(tmp_path: Path) -> None:
    stage = staged(tmp_path)

    async def story(client: Client) -> None:
        client.token = MONITOR
        answers = await asyncio.gather(*(client.post(PAGE, post(alert(), alert())) for _ in range(20)))
        said = [one for answer in answers for one in outcomes(answer)]
        assert said.count("accepted") == 1 and said.count("duplicate") == 39

    play(stage, story)
    assert len(stage.machine.asked) == 1


def test_what_never_acts(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    stage.clock.advance_to(2000.0)
    late = alert(at=1000.0)
    never = [late, alert("Other", at=1990.0), alert(rank="9", at=1990.0), alert(startsAt="yesterday"), alert(at=3000.0)]

    async def story(client: Client) -> None:
        client.token = MONITOR
        for _ in range(3):
            assert outcomes(await client.post(PAGE, post(*never))) == ["noted"] * 5

    play(stage, story)
    assert not stage.machine.asked
    assert len(stage.audit()) == 5  # written down once, not at every repetition


def test_an_alert_about_a_former_holder(tmp_path: Path) -> None:
    stage = staged(tmp_path)

    async def story(client: Client) -> None:
        client.token = MONITOR
        stage.lose("m-1", 61.0)
        stage.clock.advance_to(70.0)
        answer = await client.post(PAGE, post(alert(at=60.5)))
        assert outcomes(answer) == ["noted"] and "took over" in answer.json()["alerts"][0]["reason"]

    play(stage, story)
    assert not stage.machine.asked


def test_a_refused_alert_may_act_later(tmp_path: Path) -> None:
    stage = staged(tmp_path)

    async def story(client: Client) -> None:
        client.token = MONITOR
        stage.machine.why_not = because(Code.RECOVERING)
        for _ in range(2):
            answer = await client.post(PAGE, post(alert()))
            assert outcomes(answer) == ["refused"] and answer.json()["alerts"][0]["code"] == Code.RECOVERING
        stage.machine.why_not = None
        assert outcomes(await client.post(PAGE, post(alert()))) == ["accepted"]

    play(stage, story)
    assert [line["outcome"] for line in stage.audit()] == ["refused", "accepted"]


def test_too_many_actions_are_put_off(tmp_path: Path) -> None:
    stage = staged(tmp_path, Limits(act=Rate(2, 0.5)))
    storm = [alert(at=50.0 + number / 10, fingerprint=f"f{number}") for number in range(4)]

    async def story(client: Client) -> None:
        client.token = MONITOR
        answer = await client.post(PAGE, post(*storm))
        assert answer.status_code == 429 and answer.headers["retry-after"]
        said = [one["outcome"] for one in answer.json()["alerts"]]
        assert said == ["accepted", "accepted", "put off", "put off"]
        stage.clock.advance_to(70.0)
        assert outcomes(await client.post(PAGE, post(*storm))) == ["duplicate", "duplicate", "accepted", "accepted"]

    play(stage, story)
    assert len(stage.machine.asked) == 4


def test_a_storm_does_not_fill_the_audit(tmp_path: Path) -> None:
    stage = staged(tmp_path, Limits(note=Rate(3, 1)))
    storm = [alert("Other", fingerprint=f"f{number}") for number in range(20)]

    async def story(client: Client) -> None:
        client.token = MONITOR
        assert outcomes(await client.post(PAGE, post(*storm))) == ["noted"] * 20

    play(stage, story)
    assert len(stage.audit()) == 3


def test_when_nothing_more_can_be_remembered_nothing_more_acts(tmp_path: Path) -> None:
    stage = staged(tmp_path, Limits(alerts=1))

    async def story(client: Client) -> None:
        client.token = MONITOR
        assert outcomes(await client.post(PAGE, post(alert(), alert(rank="0")))) == ["accepted", "refused"]

    play(stage, story)


def test_the_generic_format(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    body = {"source": "dcgm", "status": "firing", "labels": {"alertname": "Hot", "rank": "1"}, "reason": "95 degrees"}

    async def story(client: Client) -> None:
        client.token = MONITOR
        page = "/v1/webhooks/generic"
        assert outcomes(await client.post(page, body)) == ["accepted"]
        assert outcomes(await client.post(page, body)) == ["duplicate"]
        assert outcomes(await client.post(page, {**body, "started_at": time_at(55.0)})) == ["accepted"]
        assert outcomes(await client.post(page, {**body, "status": "resolved"})) == ["resolved"]
        assert (await client.post(page, {**body, "more": 1})).status_code == 422
        assert (await client.post(page, body, ACTOR)).status_code == 403

    play(stage, story)
    assert [type(asked) for asked in stage.machine.asked] == [MoveRanks, MoveRanks]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {**post(), "version": "5"},
        {**post(), "version": 4},
        {**post(), "alerts": [{"status": "firing"}]},
        {**post(), "alerts": [alert(labels={"alertname": 3})]},
        {**post(), "alerts": [alert(labels={f"l{number}": "" for number in range(100)})]},
        {**post(), "alerts": [alert(status="maybe")]},
        {**post(), "alerts": [alert(startsAt=3)]},
        {**post(), "alerts": [{"status": "resolved", "labels": {}, "startsAt": ""}] * 501},
    ],
)
def test_malformed_posts(tmp_path: Path, body: object) -> None:
    stage = staged(tmp_path)

    async def story(client: Client) -> None:
        client.token = MONITOR
        assert (await client.post(PAGE, body)).status_code == 422

    play(stage, story)
    assert not stage.machine.asked
