"""Pages that ask the job for something. The machine decides; a refusal is answered with 409 and its reason."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from understudy.api.actions import ActionCall, Actions
from understudy.api.auth import CALLER
from understudy.api.job import JobInterface
from understudy.api.models import Abort, ActionAnswer, ActionBody, Drain, Migrate, Refusal, Replace, Spares
from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol import requests as rq

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=128,
        pattern=r"^[!-~]+$",
        description="the same key with the same body acts once, and is answered the same",
    ),
]
_REFUSED: dict[int | str, dict[str, Any]] = {
    409: {"model": Refusal, "description": "The job refuses, or the key is used"}
}


def router(interface: JobInterface, actions: Actions) -> APIRouter:
    pages = APIRouter(tags=["actions"], responses=_REFUSED)

    def ask(http: Request, body: ActionBody, raw: bytes, key: str | None, request: rq.Request) -> Response:
        call = ActionCall(
            action=http.url.path.rpartition("/")[2],
            body=raw,
            asked=body.model_dump(),
            dry_run=body.dry_run,
            key=key or "",
        )
        answer = actions.act(http.scope[CALLER], call, request)
        return Response(answer.content.model_dump_json(), answer.status, media_type="application/json")

    def page(path: str, text: str) -> Callable[[Any], Any]:
        return pages.post(path, response_model=ActionAnswer, description=text)

    @page("/migrate", "Move ranks to spares at a step boundary, while training goes on until then.")
    async def migrate(http: Request, body: Migrate, key: Key = None) -> Response:
        ranks = tuple(Rank(rank) for rank in dict.fromkeys(body.ranks))
        request = rq.MoveRanks(at=interface.now(), reason=body.reason, ranks=ranks)
        return ask(http, body, await http.body(), key, request)

    @page("/drain", "Move every rank away from a host, and put nothing there any more.")
    async def drain(http: Request, body: Drain, key: Key = None) -> Response:
        request = rq.DrainHost(at=interface.now(), reason=body.reason, host=HostId(body.host))
        return ask(http, body, await http.body(), key, request)

    @page("/undrain", "Put ranks on a host again: its drain is called off, and nothing is held against it any more.")
    async def undrain(http: Request, body: Drain, key: Key = None) -> Response:
        request = rq.UndrainHost(at=interface.now(), reason=body.reason, host=HostId(body.host))
        return ask(http, body, await http.body(), key, request)

    @page("/replace", "End the process that holds a rank now; a spare takes over.")
    async def replace(http: Request, body: Replace, key: Key = None) -> Response:
        member = None if body.member is None else MemberId(body.member)
        request = rq.ReplaceRank(at=interface.now(), reason=body.reason, rank=Rank(body.rank), member=member)
        return ask(http, body, await http.body(), key, request)

    @page(
        "/abort-generation",
        "All ranks leave the generation now and report what they hold; a rank that does not is replaced.",
    )
    async def abort(http: Request, body: Abort, key: Key = None) -> Response:
        request = rq.AbortGeneration(at=interface.now(), reason=body.reason)
        return ask(http, body, await http.body(), key, request)

    @page("/spares", "Keep so many spares ready on a host from now on.")
    async def spares(http: Request, body: Spares, key: Key = None) -> Response:
        request = rq.KeepSpares(at=interface.now(), reason=body.reason, host=HostId(body.host), spares=body.spares)
        return ask(http, body, await http.body(), key, request)

    return pages
