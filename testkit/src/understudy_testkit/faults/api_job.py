"""A job behind a real HTTP server, for claims and tests: a real leader with a real machine, and light hosts.

It runs in a thread with a loop of its own, so that an attacker can use any client. Everything that is asked of
the machine is written down, to be compared with what was answered and with the audit.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from understudy.api.app import Api, Settings, make_api
from understudy.api.audit import Audit
from understudy.api.event_stream import EventStream
from understudy.api.job import ManyHosts
from understudy.api.limits import Limits
from understudy.api.rules import Rule, RuleAction, Rules
from understudy.api.server import ApiServer
from understudy.api.tokens import Caller, Role, Tokens
from understudy.coordinator.leader import Leader
from understudy.coordinator.service import Service
from understudy.coordinator.state_store import MemoryStateStore
from understudy.files.background import BackgroundFiles
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import MemberId, StepNumber
from understudy.foundation.token_bucket import Rate
from understudy.ledger.run import AUDIT
from understudy.ledger.writing import RecordLog
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.positions import Position
from understudy.protocol.requests import Request
from understudy.protocol.stages import Stage
from understudy.wire.certificates import Certificates
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.light_hosts import LightHost, Meeting

RANKS, SPARES = 4, 4
READER, ACTOR, MONITOR = (f"{name}-token-of-the-claim-0123456789" for name in ("reader", "actor", "monitor"))
RULES = Rules(rules=(Rule(alert="Broken", action=RuleAction.ABORT), Rule(alert="Hot", action=RuleAction.DRAIN)))
_PLENTY = Rate(1e9, 1e9)
GENEROUS = Limits(read=_PLENTY, act=_PLENTY, webhook=_PLENTY, stranger=_PLENTY)
"""So that what is tried reaches what is behind the limits."""

_Result = TypeVar("_Result")


def tokens() -> Tokens:
    roles = {"reader": (READER, Role.READ), "actor": (ACTOR, Role.ACT), "monitor": (MONITOR, Role.WEBHOOK)}
    return Tokens(
        {
            hashlib.sha256(token.encode()).digest(): Caller(name, frozenset({role}))
            for name, (token, role) in roles.items()
        }
    )


class SteppingHost(LightHost):
    """Its members commit a step between any two things that happen to them, and can be moved."""

    steps = itertools.count(10)

    def told(self, member: MemberId, command: cmd.ToMember) -> None:
        match command:
            case cmd.AskStep(generation=generation):
                step = StepNumber(next(self.steps))
                self.client.handle(ev.StepTold(at=0.0, member=member, generation=generation, step=step))
            case cmd.AbandonGeneration(generation=generation, boundary=int(boundary)):
                told = ev.PositionReported(
                    at=0.0,
                    member=member,
                    generation=generation,
                    position=Position(holds=StepNumber(boundary)),
                    twin_key="all",
                )
                self.client.handle(told)
            case cmd.ResumeAt(leavers=leavers) if member in leavers:
                pass  # it hands over, and is ended
            case _:
                super().told(member, command)

    def kill(self, member: MemberId, *, hang: bool, reason: str) -> None:
        kind = CauseKind.HANG if hang else CauseKind.DISMISSED
        self.lose(member, Cause(kind=kind, detail=reason, exit_code=-9, step=StepNumber(next(self.steps))))


class WrittenDown(ManyHosts):
    """Notes everything that is asked of the machine."""

    def __init__(self, service: Service, *, event_stream: EventStream) -> None:
        super().__init__(service, clock=SystemClock(), event_stream=event_stream)
        self.asked: list[Request] = []

    def handle(self, request: Request) -> None:
        self.asked.append(request)
        super().handle(request)


@dataclass
class ApiJob:
    """`faults`: what failed by our own fault. Everything but `in_loop` may be called from any thread."""

    folder: Path
    loop: asyncio.AbstractEventLoop
    interface: WrittenDown
    api: Api
    server: ApiServer
    leader: Leader
    hosts: list[SteppingHost]
    faults: list[Exception]
    audit: Audit
    files: BackgroundFiles
    opened: list[ApiServer] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def in_loop(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30.0)

    def look(self, question: Callable[[], _Result]) -> _Result:
        async def ask() -> _Result:
            return question()

        return self.in_loop(ask())

    def audited(self) -> list[dict[str, Any]]:
        self.in_loop(self.files.drain(10.0))
        file = self.folder / "ledger" / "audit.jsonl"
        return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []

    def is_well(self) -> bool:
        """Trains with all its ranks, and has a spare that is warm."""
        machine = self.interface.machine()
        if machine is None or machine.stage is not Stage.TRAINING or machine.migration.state.reasons:
            return False
        return len(machine.roster.holders) == RANKS and bool(machine.roster.parked)

    def wait_until_well(self, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.look(self.is_well):
            if time.monotonic() > deadline:
                machine = self.look(self.interface.machine)
                why = "no coordinator leads" if machine is None else f"{machine.stage} {machine.stopped}"
                raise NotProven(f"the job is not well after {seconds:g} s: {why}")
            time.sleep(0.02)

    def open_strict(self, certificates: Certificates | None = None) -> ApiServer:
        """Another server of the same job, with the usual limits."""

        async def open_() -> ApiServer:
            settings = Settings(tokens=tokens(), rules=RULES, on_fault=self.faults.append)
            server = ApiServer(make_api(self.interface, self.audit, settings).app, self.said.append)
            await server.open("127.0.0.1:0", certificates)
            return server

        server = self.in_loop(open_())
        self.opened.append(server)
        return server


@contextlib.contextmanager
def running(folder: Path, limits: Limits = GENEROUS) -> Iterator[ApiJob]:
    """Four ranks on four hosts, and a host with four spares."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    job = asyncio.run_coroutine_threadsafe(_start(folder, loop, limits), loop).result(30.0)
    try:
        job.wait_until_well()
        yield job
    finally:
        job.in_loop(_stop(job))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10.0)


async def _start(folder: Path, loop: asyncio.AbstractEventLoop, limits: Limits) -> ApiJob:
    token = hashlib.sha256(str(folder).encode()).hexdigest()
    service, state_store, event_stream = Service("job", token), MemoryStateStore(), EventStream()
    port = await service.open("127.0.0.1:0", None)
    leader = Leader(
        await state_store.lead("leader"), state_store=state_store, clock=SystemClock(), journals=(event_stream,)
    )
    await leader.begin()
    service.leader, service.leads = leader, "leader"
    interface = WrittenDown(service, event_stream=event_stream)
    faults: list[Exception] = []
    said: list[str] = []
    files = BackgroundFiles(said.append)
    audit = Audit(RecordLog.open(files, folder / "ledger", AUDIT))
    settings = Settings(tokens=tokens(), rules=RULES, limits=limits, on_fault=faults.append)
    api = make_api(interface, audit, settings)
    server = ApiServer(api.app, said.append)
    await server.open("127.0.0.1:0", None)
    meeting = Meeting(address=f"127.0.0.1:{port}", token=token, world=RANKS)
    hosts = [SteppingHost(f"h{number}", 1, 0, meeting, {}) for number in range(RANKS)]
    hosts.append(SteppingHost("s0", 0, SPARES, meeting, {}))
    for host in hosts:
        host.client.start()
    return ApiJob(folder, loop, interface, api, server, leader, hosts, faults, audit, files, said=said)


async def _stop(job: ApiJob) -> None:
    job.interface.event_stream.close()
    for server in (job.server, *job.opened):
        await server.close()
    for host in job.hosts:
        await host.client.close("the claim ends")
    job.leader.step_down("the claim ends")
    await job.files.drain(10.0)
    job.files.close()
