"""`understudy run`: starts a job on this host and stays with it to its end.

Joins the coordinator (decides), the supervisor (acts) and the terminal (shows). Exit codes: docs/exit-codes.md.
"""

import argparse
import asyncio
import datetime
import os
import platform
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.agent import inventory
from understudy.agent.supervisor import Supervisor
from understudy.cli import run_flags, run_parser
from understudy.cli.http_flags import make_event_stream, read_api_request
from understudy.cli.log import Log
from understudy.cli.logged import LoggedTerminal
from understudy.cli.observers import Observers, load_observers
from understudy.cli.run_on_host import run_on_host
from understudy.cli.shared_store import coordinator_beside, prepare_run
from understudy.cli.terminal import Terminal, View, make_terminal
from understudy.cli.token_files import read_job_tokens
from understudy.coordinator.coordinator import Coordinator
from understudy.coordinator.effects import Journals
from understudy.coordinator.probes import serving_probes
from understudy.detection.contract import STEPPING
from understudy.detection.progress import Place
from understudy.errors import SettingsError
from understudy.files.background import BackgroundFiles
from understudy.foundation import settings
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import MemberId
from understudy.ledger.concealing import conceal
from understudy.ledger.goodput import GOODPUT
from understudy.ledger.records import RunInfo
from understudy.ledger.run import AUDIT, DECISIONS
from understudy.ledger.writing import RecordLog, restore_run_info, write_run_info
from understudy.protocol.commands import StopJob
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.wire.certificates import Certificates
from understudy.wire.inventory import HostInventory
from understudy.wire.renewal import watched
from understudy.wire.roles import PartyRole

if TYPE_CHECKING:
    from understudy.api.event_stream import EventStream
    from understudy.api.setup import ApiRequest

add_arguments = run_parser.add_arguments
_LOG_NAME = "understudy agent"
_STEPPED = (*STEPPING, Place.RELEASED)
_LAST_WORDS = 1.0  # seconds for what is written when the workers have ended; the rest had its time before


def main(given: argparse.Namespace) -> int:
    if find_spec("torch") is None:  # it is not loaded here, but in every process that this one starts
        raise SettingsError("training needs torch, which is not installed here: pip install 'understudy[training]'")
    args = prepare_run(given, settings.whole_environment())
    run_dir = _run_dir(args.run_dir, shared=bool(args.coordinator))
    logged = bool(args.coordinator) or args.log_format != "text"
    live = sys.stderr.isatty() and not args.no_progress and not logged
    request = run_flags.read_request(args, settings.whole_environment(), run_dir, live)
    role = PartyRole.AGENT if args.coordinator else PartyRole.COORDINATOR  # on one host this process decides itself
    certificates = None if args.certs is None else Certificates.read(args.certs, role)
    tokens = read_job_tokens(args.token_file) if args.coordinator else None
    api = read_api_request(args, certificates)
    observers = load_observers(request)
    restore = _write_run_info(run_dir, request)
    job = request.placement.job_key
    log = Log(_LOG_NAME, job, args.log_format, host=request.plan.host or socket.gethostname())
    terminal = LoggedTerminal(run_dir, log) if logged else make_terminal(live, run_dir)
    for text in observers.left_out:
        terminal.say(text)
    try:
        if tokens is not None:
            beside = coordinator_beside(given, args, request.placement, request.plan.environment, terminal.say)
            running = run_on_host(args, request, observers, certificates, tokens, terminal, log, restore, beside)
        else:
            log.run = lambda: run_dir.name
            running = _run(request, observers, terminal, api, args.health, restore)
        secrets = (certificates, tokens, None if api is None else api.tokens)
        return asyncio.run(watched(running, secrets, terminal.say, log.warn if logged else None)).exit_code
    except KeyboardInterrupt:  # before the first process was started
        return 128 + signal.SIGINT


async def _run(
    request: run_flags.RunRequest,
    observers: Observers,
    terminal: Terminal,
    api: "ApiRequest | None",
    health: str | None,
    restore: Callable[[], None],
) -> StopJob:
    clock = SystemClock()
    files = BackgroundFiles(terminal.say)
    decisions = RecordLog.open(files, request.plan.run_dir / "ledger", DECISIONS, restore)
    event_stream, own = make_event_stream(api), inventory.read(request.plan.environment)
    journals = Journals((decisions, terminal, *(() if event_stream is None else (event_stream,))), terminal.say)
    supervisor = Supervisor(
        request.plan,
        clock=clock,
        policy=request.policy,
        console=terminal.output,
        say=terminal.say,
        files=files,
        report=journals.append,
        ledger_remade=restore,
        detectors=observers.detectors,
        responses=observers.responses,
        devices=own.devices,
    )
    coordinator = Coordinator(
        JobMachine(request.policy),
        effects=supervisor,
        clock=clock,
        journals=(journals,),
        devices=own.numbered_devices,
        accounts=RecordLog.open(files, request.plan.run_dir / "ledger", GOODPUT, restore).append,
    )
    _handle_signals(request.signals, coordinator, supervisor)
    terminal.begin(conceal(request.plan.command), request.policy.world_size, request.policy.spares, request.remarks)
    showing = asyncio.create_task(terminal.keep_showing(lambda: _view(coordinator, supervisor)))
    try:
        async with (
            serving_probes(health, lambda: coordinator.machine.stopped is None, terminal.say),
            _serving(api, event_stream, coordinator, supervisor, request, own, terminal, files),
        ):
            stop = await supervisor.run(coordinator)
    finally:
        showing.cancel()
        terminal.close()
        await files.drain(_LAST_WORDS)
        files.close()
    terminal.tell("goodput", coordinator.goodput.sentence())
    terminal.end(stop)  # programs read lines until this one
    return stop


@asynccontextmanager
async def _serving(
    api: "ApiRequest | None",
    event_stream: "EventStream | None",
    coordinator: Coordinator,
    supervisor: Supervisor,
    request: run_flags.RunRequest,
    own: HostInventory,
    terminal: Terminal,
    files: BackgroundFiles,
) -> AsyncIterator[None]:
    """The HTTP API beside the job, if it was asked for."""
    if api is None or event_stream is None:
        yield
        return
    from understudy.api.job import OneHost
    from understudy.api.setup import serving

    run_dir = request.plan.run_dir
    interface = OneHost(
        run_dir.name,
        coordinator,
        clock=SystemClock(),
        event_stream=event_stream,
        tell=supervisor.tell,  # as its own events, so that its timer is set again and a failure ends the job orderly
        steps=lambda: _steps(supervisor),
        inventory=own,
    )
    names = {THIS_HOST: (socket.gethostname(), "localhost", "127.0.0.1", *own.addresses)}
    audit = RecordLog.open(files, run_dir / "ledger", AUDIT)
    async with serving(
        api, interface, run_dir, terminal.say, audit, aliases=names, enough=lambda: supervisor.hurried
    ) as server:
        terminal.say(f"HTTP API on {server.url} (see `understudy status {run_dir}`)")
        yield


def _steps(supervisor: Supervisor) -> Mapping[MemberId, int]:
    found = {member: worker.step() for member, worker in supervisor.workers.items() if worker.rank is not None}
    return {member: step for member, step in found.items() if step is not None}


def _view(coordinator: Coordinator, supervisor: Supervisor) -> View:
    """What the live line shows, read from where it is known."""
    machine = coordinator.machine
    pages = [worker.page.look() for worker in supervisor.workers.values() if worker.rank is not None]
    steps = [page.step for page in pages if page.place in _STEPPED]
    return View(
        stage=machine.stage.value,
        generation=machine.generation,
        step=max(steps, default=None),
        ranks_up=sum(member.connected for member in machine.roster.seated()),
        world_size=machine.policy.world_size,
        spares_warm=len(machine.roster.parked),
        spares_starting=len(machine.roster.starting),
    )


def _handle_signals(signals: tuple[signal.Signals, ...], coordinator: Coordinator, supervisor: Supervisor) -> None:
    """The first one ends the job with a grace period, the second one without."""

    def on_signal(number: signal.Signals) -> None:
        if coordinator.machine.stopped is not None:
            supervisor.hurry()
        coordinator.request_stop(f"{number.name} was received", 128 + number)

    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)


def _run_dir(given: str | None, shared: bool) -> Path:
    """`shared`: other hosts use the same folder, and one of them may have been first."""
    if given is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        given = os.path.join("understudy-runs", f"{stamp}-{os.getpid()}")
    path = Path(given).absolute()
    if (path / "run.json").exists() and not shared:
        raise SettingsError(f"--run-dir {given}: there is a run in this folder already")
    return path


def _write_run_info(run_dir: Path, request: run_flags.RunRequest) -> Callable[[], None]:
    """Returns what writes it again, should the folder be removed."""
    info = RunInfo(
        job=run_dir.name,
        command=conceal(request.plan.command),
        world_size=request.policy.world_size,
        spares=request.policy.spares,
        digest_every=request.plan.ledger_digest_every,
        started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        versions=_versions(),
    )
    try:
        write_run_info(run_dir, info)
    except OSError as error:
        raise SettingsError(f"--run-dir {run_dir}: {error.strerror}; give another folder") from error
    return partial(restore_run_info, run_dir, info)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("understudy", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
