"""The pages, put together. Everything under /v1 is in the published description, /v1/openapi.json."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response

from understudy.api import action_pages, reading, webhooks
from understudy.api.actions import Actions, WallClock
from understudy.api.audit import Audit
from understudy.api.auth import AccessControl, App, Refused
from understudy.api.job import JobInterface, NotLeading
from understudy.api.limits import Limits
from understudy.api.metrics import CONTENT_TYPE, Metrics
from understudy.api.models import Refusal
from understudy.api.registry import Registry
from understudy.api.rules import Rules
from understudy.api.tokens import Tokens
from understudy.api.webhook_formats import WebhookFormat
from understudy.foundation.clock import Clock, SystemClock
from understudy.foundation.printable import printable
from understudy.plugins import registry
from understudy.plugins.kinds import WEBHOOK
from understudy.wire.certificates import Certificates

Page = Callable[[Mapping[str, int]], Mapping[str, object]]
"""Is given how often requests were refused, by kind."""
_MOST_PROBLEMS = 10
_LONGEST_PROBLEM = 200


LeaderUrl = Callable[[], Awaitable[str]]
"""Where the API of the coordinator that leads is; empty: that is not known."""


async def _unknown_leader() -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`pages`: further ones outside of /v1, as plain values. `leader_url`: for clients that ask one that stands by.
    `webhooks`: formats by name. `say`: told of one whose page cannot be made."""

    tokens: Tokens | None = None
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    pages: Mapping[str, Page] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)
    wall: WallClock = time.time
    on_fault: Callable[[Exception], None] = lambda _: None
    certificates: Certificates | None = None
    store_certificates: Certificates | None = None
    leader_url: LeaderUrl = _unknown_leader
    webhooks: Mapping[str, WebhookFormat] = field(default_factory=lambda: registry.ours(WEBHOOK))
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Api:
    """`app`: behind its access control. `described`: the application itself, for its description."""

    app: App
    described: FastAPI
    metrics: Metrics
    actions: Actions


def make_api(interface: JobInterface, audit: Audit, settings: Settings) -> Api:
    metrics = Metrics(interface, settings.clock, settings.certificates, settings.store_certificates)
    actions = Actions(
        interface,
        audit=audit,
        metrics=metrics,
        rules=settings.rules,
        registry=Registry(settings.rules.hosts, interface.inventories),
        limits=settings.limits,
        clock=settings.clock,
        wall=settings.wall,
    )
    app = FastAPI(
        title="Understudy",
        version="1",
        description="What a job is doing, and what may be asked of it.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=[Security(HTTPBearer(auto_error=False, description="a token of --http-tokens"))],
        responses=_REFUSALS,
    )
    app.include_router(reading.router(interface, settings.limits, settings.leader_url), prefix="/v1")
    app.include_router(action_pages.router(interface, actions), prefix="/v1/actions")
    app.include_router(webhooks.router(actions, settings.webhooks, settings.say), prefix="/v1/webhooks")
    _add_plain_pages(app, interface, metrics, settings.pages)
    _add_refusals(app, metrics, settings.leader_url)
    access = AccessControl(
        app,
        tokens=settings.tokens,
        buckets=actions.buckets,
        limits=settings.limits,
        clock=settings.clock,
        metrics=metrics,
        on_fault=settings.on_fault,
    )
    return Api(access, app, metrics, actions)


_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal, "description": HTTPStatus(code).phrase}
    for code in (400, 401, 403, 408, 413, 422, 429, 503)
}


def _add_plain_pages(app: FastAPI, interface: JobInterface, metrics: Metrics, pages: Mapping[str, Page]) -> None:
    """Not part of the versioned API: probes, Prometheus, and what was there before."""

    async def health(_: Request) -> Response:
        return _json(200, {"healthy": True, "leading": interface.leads()})

    async def numbers(_: Request) -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    def shows(page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def show(_: Request) -> Response:
            return _json(200, page(metrics.refusals))

        return show

    app.add_route("/health", health)
    app.add_route("/metrics", numbers)
    for path, page in pages.items():
        app.add_route(path, shows(page))


# -- refusals ---------------------------------------------------------------------------------------------------------


def _add_refusals(app: FastAPI, metrics: Metrics, leader_url: LeaderUrl) -> None:
    """Each says why, and what to do. None repeats what was sent: it may be anything."""

    async def on_refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        metrics.refused(error.kind)
        return Response(error.body(), error.status, error.headers, media_type="application/json")

    async def on_standby(_: Request, error: Exception) -> Response:
        assert isinstance(error, NotLeading)
        metrics.refused("standby")
        leader = "" if error.leads else await leader_url()
        return _json(503, {**_refusal(str(error), error.advise(leader)), "leader_url": leader or None})

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        metrics.refused("invalid")
        problems = [_problem(found) for found in error.errors()[:_MOST_PROBLEMS]]
        advice = "see problems; /v1/openapi.json describes every request"
        if request.method == "POST" and "json" not in request.headers.get("content-type", ""):
            advice = "send the header Content-Type: application/json"
        return _json(422, _refusal("the request is not as described", advice, problems))

    async def on_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        metrics.refused(HTTPStatus(error.status_code).phrase.lower())
        reason = {404: "there is no such page", 405: "this page does not take that method"}.get(
            error.status_code, "the request cannot be read"
        )
        content = _refusal(reason, "see /v1/openapi.json for what there is")
        return _json(error.status_code, content, dict(error.headers or {}))

    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(NotLeading, on_standby)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


def _problem(found: Mapping[str, Any]) -> str:
    """Where and what. The place may hold a name that the caller made up."""
    place = ".".join(str(part) for part in found.get("loc", ()))
    text = f"{place}: {found.get('msg', '')}"
    return printable(text[:_LONGEST_PROBLEM])


def _refusal(reason: str, advice: str, problems: list[str] | None = None) -> dict[str, object]:
    return {"reason": reason, "advice": advice, "problems": problems or []}


def _json(status: int, content: Mapping[str, object], headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(content).encode("ascii")
    return Response(body, status, {"cache-control": "no-store", **(headers or {})}, media_type="application/json")
