"""A format of another package has a page like ours, and whatever it does the job goes on."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field
from tests.api.stage import MONITOR, Client, Stage, play

from understudy.api.alerts import Alert
from understudy.api.rules import Rule, RuleAction, Rules
from understudy.protocol.requests import MoveRanks

RULES = Rules(rules=(Rule(alert="Hot", action=RuleAction.DRAIN),))


class Post(BaseModel):
    rank: Annotated[int, Field(ge=0)]


class Mine:
    """Ranks that are hot.

    More than the first line is for people who read the source."""

    post = Post

    def alerts(self, post: Post, now: float) -> Any:
        labels = {"alertname": "Hot", "rank": str(post.rank)}
        return (Alert(source="mine", name="Hot", labels=labels, firing=True, started=now, key=f"{post.rank}"),)


class Broken(Mine):
    def alerts(self, post: Post, now: float) -> Any:
        raise KeyError(f"{post} at {now}")


class Garbled(Mine):
    def alerts(self, post: Post, now: float) -> Any:
        return [post, now]


class Undescribable(Mine):
    post = object()  # type: ignore[assignment]


def staged(folder: Path, **formats: Any) -> Stage:
    stage = Stage(folder, rules=RULES, webhooks=formats)
    stage.begin()
    stage.clock.advance_to(60.0)
    return stage


def test_a_post_in_another_format_is_checked_described_and_acted_upon(tmp_path: Path) -> None:
    stage = staged(tmp_path, mine=Mine())

    async def story(client: Client) -> None:
        page = "/v1/webhooks/mine"
        assert (await client.post(page, {"rank": 1})).status_code == 403, "a reader is no monitor"
        assert (await client.post(page, {"rank": -1}, MONITOR)).status_code == 422
        answer = await client.post(page, {"rank": 1}, MONITOR)
        assert answer.status_code == 200 and answer.json()["alerts"][0]["outcome"] == "accepted"
        described = (await client.get("/v1/openapi.json")).json()["paths"][page]["post"]
        assert described["description"] == "Ranks that are hot."

    play(stage, story)
    (asked,) = stage.machine.asked
    assert isinstance(asked, MoveRanks) and asked.ranks == (1,) and asked.reason == "alert Hot from mine"


def test_a_format_that_fails_is_answered_with_500_and_named(tmp_path: Path) -> None:
    stage = staged(tmp_path, broken=Broken(), garbled=Garbled())

    async def story(client: Client) -> None:
        for name in ("broken", "garbled"):
            assert (await client.post(f"/v1/webhooks/{name}", {"rank": 1}, MONITOR)).status_code == 500
        assert ["the webhook broken cannot read" in str(stage.faults[0]), "garbled" in str(stage.faults[1])] == [
            True
        ] * 2
        stage.faults.clear()

    play(stage, story)
    assert not stage.machine.asked


def test_a_format_whose_post_cannot_be_described_is_left_out(tmp_path: Path) -> None:
    stage = staged(tmp_path, undescribable=Undescribable(), mine=Mine())

    async def story(client: Client) -> None:
        assert (await client.post("/v1/webhooks/undescribable", {}, MONITOR)).status_code == 404
        assert (await client.post("/v1/webhooks/mine", {"rank": 1}, MONITOR)).status_code == 200

    play(stage, story)
    (said,) = stage.said
    assert said.startswith("the webhook undescribable is left out, its post cannot be described: ")
