"""A job of two ranks and one spare whose machine notes what is asked of it, and the API before it."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.coordinator.acting import Play
from tests.ledger.made_up import WrittenAtOnce

from understudy.api.app import Api, Settings, make_api
from understudy.api.audit import Audit
from understudy.api.event_stream import EventStream
from understudy.api.job import OneHost
from understudy.api.limits import Limits
from understudy.api.rules import Rules
from understudy.api.tokens import Caller, Role, Tokens
from understudy.api.webhook_formats import WebhookFormat
from understudy.coordinator.coordinator import Coordinator
from understudy.foundation.ids import MemberId
from understudy.ledger.writing import RecordLog
from understudy.plugins import registry
from understudy.plugins.kinds import WEBHOOK
from understudy.protocol.commands import Command, DecisionKind, RecordDecision
from understudy.protocol.events import Event
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.requests import Request

READER, ACTOR, MONITOR = "reader-token-0123456789", "actor-token-0123456789", "monitor-token-0123456789"
NOON = 1_800_000_000.0  # the wall clock when the job's clock is 0


class AskableMachine(JobMachine):
    """Notes requests, and refuses them when a test says so."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.asked: list[Request] = []
        self.why_not: Reason | None = None

    def refusal(self, _request: Request) -> Reason | None:
        return self.why_not

    def handle(self, event: Event) -> tuple[Command, ...]:
        if not isinstance(event, Request):
            return super().handle(event)
        self.asked.append(event)
        why = because(Code.REQUESTED, text=event.reason)
        note = RecordDecision(at=event.at, generation=self.generation, kind=DecisionKind.WARN, reason=why)
        return (note,)


class Stage(Play):
    def __init__(
        self,
        folder: Path,
        *,
        rules: Rules | None = None,
        limits: Limits | None = None,
        open_: bool = False,
        webhooks: Mapping[str, WebhookFormat] | None = None,
    ) -> None:
        """`webhooks`: formats beside ours."""
        super().__init__()
        self.event_stream = EventStream()
        self.machine = AskableMachine(Policy(world_size=2, spares=1))
        self.coordinator = Coordinator(
            self.machine, effects=self.effects, clock=self.clock, journals=(self.journal, self.event_stream)
        )
        self.coordinator.advanced(6, 7)
        self.folder, self.faults, self.said = folder, list[Exception](), list[str]()
        self.steps = {MemberId("m-0"): 7, MemberId("m-1"): 6}
        self.interface = OneHost(
            "job",
            self.coordinator,
            clock=self.clock,
            event_stream=self.event_stream,
            tell=self.coordinator.handle,
            steps=lambda: self.steps,
        )
        settings = Settings(
            tokens=None if open_ else tokens(),
            rules=rules or Rules(),
            limits=limits or Limits(),
            clock=self.clock,
            wall=lambda: NOON + self.clock.now(),
            on_fault=self.faults.append,
            webhooks={**registry.ours(WEBHOOK), **(webhooks or {})},
            say=self.said.append,
        )
        self.api: Api = make_api(self.interface, Audit(RecordLog(WrittenAtOnce(folder / "audit.jsonl"))), settings)

    def audit(self) -> list[dict[str, Any]]:
        file = self.folder / "audit.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def tokens() -> Tokens:
    known = {
        READER: Caller("reader", frozenset({Role.READ})),
        ACTOR: Caller("actor", frozenset({Role.ACT})),
        MONITOR: Caller("monitor", frozenset({Role.WEBHOOK})),
    }
    return Tokens({hashlib.sha256(token.encode()).digest(): caller for token, caller in known.items()})


@dataclass
class Client:
    http: httpx.AsyncClient
    token: str | None = READER

    def _headers(self, token: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
        given = token or self.token
        return {**({} if given is None else {"Authorization": f"Bearer {given}"}), **(headers or {})}

    async def get(self, path: str, token: str | None = None, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers=self._headers(token, headers))

    async def post(self, path: str, body: object, token: str | None = None, key: str | None = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({} if key is None else {"Idempotency-Key": key})}
        return await self.http.post(path, content=content, headers=self._headers(token, headers))


def play(stage: Stage, story: Callable[[Client], Awaitable[None]]) -> None:
    """The job trains; then the story is told. Nothing in it may fail by our own fault."""

    async def whole() -> None:
        async with asyncio.timeout(20.0):
            if not stage.machine.generation:
                stage.begin()
            transport = httpx.ASGITransport(app=stage.api.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://job") as http:
                await story(Client(http))

    asyncio.run(whole())
    assert stage.faults == []
