"""`understudy run --coordinator ...`: this host's part of a job on many hosts."""

import argparse
import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from understudy.agent import inventory
from understudy.agent.coordinator_beside import CoordinatorBeside
from understudy.agent.coordinator_client import CoordinatorClient, Introduction, Tell
from understudy.agent.own_address import own_address
from understudy.agent.plan import LaunchPlan
from understudy.agent.supervisor import Supervisor
from understudy.cli.log import Log
from understudy.cli.observers import Observers
from understudy.cli.run_flags import RunRequest
from understudy.cli.run_parser import comma_separated
from understudy.cli.terminal import Terminal
from understudy.coordinator.folder import LeaderFinder, folder_of, folder_of_job
from understudy.files.background import BackgroundFiles
from understudy.foundation.clock import Clock, SystemClock
from understudy.foundation.ids import HostId
from understudy.protocol.commands import Outcome, StopJob
from understudy.protocol.reasons import Code, because
from understudy.protocol.requests import DrainHost
from understudy.protocol.sentences import sentence
from understudy.wire.certificates import Certificates
from understudy.wire.inventory import HostInventory
from understudy.wire.job_tokens import JobTokens

_LOOK_EVERY = 0.05  # seconds between two looks at whether a rank is still here


async def run_on_host(
    args: argparse.Namespace,
    request: RunRequest,
    observers: Observers,
    certificates: Certificates | None,
    tokens: JobTokens,
    terminal: Terminal,
    log: Log,
    restore: Callable[[], None],
    beside: CoordinatorBeside | None = None,
) -> StopJob:
    """`log`: learns here which run it is. `restore`: makes the folder of the run readable again, should it be
    removed. `beside`: runs a coordinator on this host, if one is needed here."""
    clock = SystemClock()
    files, own = BackgroundFiles(terminal.say), inventory.read(request.plan.environment)
    addresses = [] if args.store else comma_separated(args.coordinator)
    supervisor = Supervisor(
        await _with_address(request.plan, addresses, own, clock),
        clock=clock,
        policy=request.policy,
        console=terminal.output,
        say=terminal.say,
        files=files,
        ledger_remade=restore,
        detectors=observers.detectors,
        responses=observers.responses,
        devices=own.devices,
        beside=lambda: None if beside is None else beside.process,
    )
    client = CoordinatorClient(
        _introduction(args, request, tokens, supervisor, own),
        effects=supervisor,
        addresses=addresses,
        find=LeaderFinder(folder_of_job(folder_of(args.store), request.placement.job_key)) if args.store else None,
        certificates=certificates,
        clock=clock,
        tell=terminal.tell,
        patience=request.rendezvous_timeout,
        holds_ranks=lambda: any(worker.rank is not None for worker in supervisor.workers.values()),
    )
    log.run = lambda: client.run
    departure = Departure(request, supervisor, client, terminal.tell)
    terminal.tell("starting", f"{_offer(args, request)}; run folder {request.plan.run_dir}")
    for number in request.signals:
        asyncio.get_running_loop().add_signal_handler(number, departure.on_signal, number)
    if beside is not None:
        beside.start()
    try:
        stop = await supervisor.run(client)
        await client.close(sentence(stop.reason))
        if beside is not None:
            await beside.close(leaves=departure.leaves or client.given_up, hurried=lambda: supervisor.hurried)
    finally:
        terminal.close()
        files.close()
    if client.given_up:
        terminal.say(f"this host takes no part in the job (exit code {stop.exit_code}): {sentence(stop.reason)}")
    else:
        terminal.end(stop)
    return stop


async def _with_address(plan: LaunchPlan, coordinators: Sequence[str], own: HostInventory, clock: Clock) -> LaunchPlan:
    """Where the store of this host listens, unless --local-addr says it."""
    return plan if plan.store_host else replace(plan, store_host=await own_address(coordinators, own.addresses, clock))


def _offer(args: argparse.Namespace, request: RunRequest) -> str:
    placement = request.placement
    ranks = placement.ranks_per_host.value
    offered = f"{ranks} spares" if args.spare_host else f"{ranks} ranks, {args.spares} spares"
    told = "".join(f"; {origin}" for origin in placement.origins())
    return f"job {placement.job_key}: this host offers {offered} to {args.coordinator}{told}"


class Departure:
    """What happens on a signal: only this host's part ends. With --drain-grace its ranks move away first, as long as
    that lasts; a second signal ends the wait."""

    def __init__(self, request: RunRequest, supervisor: Supervisor, client: CoordinatorClient, tell: Tell) -> None:
        self._grace, self._host, self._code = request.drain_grace, HostId(request.plan.host), request.leave_code
        self._supervisor, self._client, self._tell = supervisor, client, tell
        self._waiting: asyncio.Task[None] | None = None
        self.leaves = False  # this host goes, whatever becomes of the job

    def on_signal(self, number: signal.Signals) -> None:
        if self._supervisor.stopping:
            self._supervisor.hurry()
        if self._grace > 0 and number is signal.SIGTERM and self._waiting is None and self._ranks():
            self._waiting = asyncio.get_running_loop().create_task(self._leave(number))
        else:
            self._end(number, "was received on this host")

    def _ranks(self) -> list[int]:
        return sorted({worker.rank for worker in self._supervisor.workers.values() if worker.rank is not None})

    async def _leave(self, number: signal.Signals) -> None:
        clock = SystemClock()
        deadline = clock.now() + self._grace
        asked = False
        ranks = self._ranks()
        text = f"{number.name}: ranks {ranks} move away from this host within {self._grace:g} s (--drain-grace)"
        self._tell("leaving", text, ranks=ranks)
        while self._ranks() and clock.now() < deadline:
            if self._client.connected and not asked:
                asked = True
                why = f"{number.name} was received there, with {self._grace:g} s notice"
                self._client.handle(DrainHost(at=clock.now(), host=self._host, reason=why))
            await asyncio.sleep(_LOOK_EVERY)
        left = self._ranks()
        self._end(number, f"was received; {f'ranks {left} were still here' if left else 'every rank has moved away'}")

    def _end(self, number: signal.Signals, what: str) -> None:
        self.leaves = True
        reason = because(Code.STOP_REQUESTED, text=f"{number.name} {what}")
        orderly = number is signal.SIGTERM and not self._ranks()
        code = 128 + number if self._code is None or not orderly else self._code
        self._supervisor.stop(StopJob(outcome=Outcome.STOPPED, reason=reason, exit_code=code))


def _introduction(
    args: argparse.Namespace, request: RunRequest, tokens: JobTokens, supervisor: Supervisor, own: HostInventory
) -> Introduction:
    placement = request.placement
    ranks = placement.ranks_per_host.value
    return Introduction(
        job=placement.job_key,
        token=tokens,
        host=request.plan.host,
        ranks=0 if args.spare_host else ranks,
        spares=ranks if args.spare_host else args.spares,
        place=None if args.spare_host else placement.place.value,
        settings=msgspec.to_builtins(request.policy),
        store=supervisor.store_address,
        members=lambda: list(supervisor.workers),
        inventory=own,
    )
