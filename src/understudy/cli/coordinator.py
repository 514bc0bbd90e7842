"""`understudy coordinator`: decides for a job whose ranks are on many hosts. Start as many as you like; one leads.

One that is deposed stands by again. Exit codes: 0 when the job succeeded, its own code when it failed.
"""

import argparse
import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.cli import http_flags, run_parser
from understudy.cli.log import FORMATS, Log
from understudy.cli.placed import key_of_coordinator
from understudy.cli.shared_store import prepare_coordinator
from understudy.cli.token_files import read_job_tokens
from understudy.coordinator import runs
from understudy.coordinator.etcd_client import EtcdAccess
from understudy.coordinator.health import HealthServer, Page
from understudy.coordinator.leader import Leader
from understudy.coordinator.probes import serving_probes
from understudy.coordinator.service import MAX_HOSTS, Service
from understudy.coordinator.state_store import StateStore
from understudy.coordinator.status import health, is_ready, status
from understudy.coordinator.store_login import StoreLogin
from understudy.coordinator.stores import StoreProvider, StoreRequest
from understudy.errors import Deposed, LedgerError, SchedulerError, SettingsError
from understudy.files.background import BackgroundFiles
from understudy.files.private import make_private_folder
from understudy.foundation import settings
from understudy.foundation.clock import SystemClock
from understudy.ledger.goodput import GOODPUT
from understudy.ledger.run import AUDIT, DECISIONS
from understudy.ledger.writing import RecordLog
from understudy.plugins import registry
from understudy.plugins.kinds import STORE
from understudy.protocol.job import JobMachine
from understudy.protocol.requests import Request
from understudy.protocol.sentences import sentence
from understudy.schedulers import slurm
from understudy.schedulers.watching import Watch
from understudy.wire.certificates import Certificates
from understudy.wire.job_tokens import JobTokens
from understudy.wire.renewal import watched
from understudy.wire.roles import PartyRole

if TYPE_CHECKING:
    from understudy.api.event_stream import EventStream
    from understudy.api.setup import ApiRequest

SCHEDULERS = ("auto", "none", "slurm")
_FAREWELL_TIMEOUT = 15.0  # seconds for agents to hear of the end and to leave
_ASK_FOR_LEADER_EVERY = 1.0  # seconds
_FLUSH_TIMEOUT = 10.0  # seconds that a disk may take at the end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default="127.0.0.1:29400", help="where agents connect, HOST:PORT")
    parser.add_argument("--advertise", help="how agents reach this one (default: --listen)")
    parser.add_argument(
        "--store",
        default="memory",
        help="memory, or for several coordinators folder:///PATH of a folder that all hosts share (docs/stores.md) or "
        "etcd://host:2379,host:2379; packages can bring others (docs/plugins.md)",
    )
    parser.add_argument(
        "--max-hosts",
        type=int,
        default=MAX_HOSTS,
        help=f"connections of agents at a time, so that idle ones cannot fill the memory (default {MAX_HOSTS})",
    )
    parser.add_argument("--store-certs", type=Path, help="folder with ca.pem, cert.pem, key.pem: TLS to etcd")
    parser.add_argument(
        "--store-name", help="the name for which etcd's certificates are (default: the first of --store)"
    )
    parser.add_argument("--store-login", type=Path, help="private file with USER:PASSWORD for etcd")
    parser.add_argument("--job", help=run_parser.JOB)
    parser.add_argument("--attempt", type=int, help=run_parser.ATTEMPT)
    parser.add_argument(
        "--new-run", action="store_true", help="begin a new run, and give up whatever the store holds of the last one"
    )
    parser.add_argument("--token-file", type=Path, help="file with the job's token (default: $UNDERSTUDY_JOB_TOKEN)")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem, cert.pem, key.pem; needed beyond this host")
    parser.add_argument("--http", help=http_flags.HTTP)
    parser.add_argument("--http-tokens", type=Path, help=http_flags.TOKENS)
    parser.add_argument("--alert-rules", type=Path, help=http_flags.RULES)
    parser.add_argument("--health", help=http_flags.HEALTH)
    parser.add_argument(
        "--scheduler",
        choices=SCHEDULERS,
        default="auto",
        help="which one is asked every 5 s for nodes of the job that it wants back: ranks leave those (default: auto, "
        "Slurm in a job of Slurm; docs/slurm.md)",
    )
    parser.add_argument("--log-format", choices=FORMATS, default="text", help="lines for people, or JSON for machines")
    parser.add_argument("--run-dir", type=Path, help="folder of the run, for the ledger of decisions; needed")
    parser.add_argument("--config", type=Path, help="file with any of these flags, under [coordinator] (TOML)")


def main(given: argparse.Namespace) -> int:
    if given.run_dir is None:
        raise SettingsError("--run-dir: say in which folder the ledger of decisions goes")
    args = prepare_coordinator(given)
    args.job = key_of_coordinator(args, settings.whole_environment())
    certificates = None if args.certs is None else Certificates.read(args.certs, PartyRole.COORDINATOR)
    tokens = read_job_tokens(args.token_file)
    access = _etcd_access(args)
    api = _read_api_request(args, certificates)
    api = None if api is None else replace(api, store_certificates=access.certificates)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one open file per host; the usual limit is 1,024
    try:
        log = Log("understudy coordinator", args.job, args.log_format, host=socket.gethostname())
        secrets = (certificates, tokens, access.certificates, access.login, None if api is None else api.tokens)
        return asyncio.run(watched(_run(args, tokens, certificates, access, api, log), secrets, log.say, log.warn))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


def _read_api_request(args: argparse.Namespace, certificates: Certificates | None) -> "ApiRequest | None":
    """The two old pages need no further package; a command line that asks for more is told which one."""
    if args.http is not None and args.http_tokens is None and args.alert_rules is None and not http_flags.installed():
        return None
    return http_flags.read_api_request(args, certificates)


def _etcd_access(args: argparse.Namespace) -> EtcdAccess:
    login = None if args.store_login is None else StoreLogin.read(args.store_login)
    certificates = None if args.store_certs is None else Certificates.read(args.store_certs, flag="--store-certs")
    return EtcdAccess(certificates, args.store_name or "", login)


def _open_state_store(args: argparse.Namespace, access: EtcdAccess, log: Log) -> StateStore:
    flag = f"--store {args.store}"
    provider: StoreProvider = registry.named(STORE, args.store.partition(":")[0], flag)
    try:
        return provider.open(StoreRequest(address=args.store, job=args.job, say=log.say, access=access))
    except SettingsError:
        raise
    except Exception as error:  # of another package
        raise SettingsError(f"{flag}: the store cannot be opened: {type(error).__name__}: {error}") from error


async def _run(
    args: argparse.Namespace,
    tokens: JobTokens,
    certificates: Certificates | None,
    access: EtcdAccess,
    api: "ApiRequest | None",
    log: Log,
) -> int:
    own = asyncio.current_task()
    assert own is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, own.cancel)  # gives up the lead on its way out
    try:
        make_private_folder(args.run_dir / "ledger")
    except OSError as error:
        raise SettingsError(f"--run-dir {args.run_dir}: {error.strerror}; give another folder") from error
    state_store = _open_state_store(args, access, log)
    service = Service(args.job, tokens, say=log.say)
    files = BackgroundFiles(log.say)
    try:
        port = await service.open(args.listen, certificates, args.max_hosts)
        name = args.advertise or f"{args.listen.rpartition(':')[0]}:{port}"
        log.tell("listening", f"listening on {name} for job {args.job}; standing by")
        async with (
            serving_probes(args.health, lambda: is_ready(service), log.say),
            _http(args, certificates, api, service, files, log) as http,
            _watching_nodes(args.scheduler, service, log),
        ):
            past = await runs.look_back(state_store, args.job, new_run=args.new_run)
            while True:
                code = await _stand(args, name, state_store, service, http, files, past, log)
                if code is not None:
                    await _end_allocation(args.scheduler, log)
                    return code
    finally:
        await service.close()
        await state_store.close()
        for missing in await files.drain(_FLUSH_TIMEOUT):
            log.say(f"not everything could be written to {missing}")
        files.close()


def _in_slurm(scheduler: str) -> bool:
    return scheduler == "slurm" or (scheduler == "auto" and slurm.started_us(settings.whole_environment()))


async def _end_allocation(scheduler: str, log: Log) -> None:
    """The leader of a job that has ended leaves last."""
    if not _in_slurm(scheduler):
        return
    try:
        done = await slurm.end_what_srun_cannot(settings.whole_environment())
    except SchedulerError as error:
        log.warn(f"the job of Slurm could not be ended: {error}")
        return
    if done is not None:
        log.say(done)


@contextlib.asynccontextmanager
async def _watching_nodes(scheduler: str, service: Service, log: Log) -> AsyncIterator[None]:
    """Beside this coordinator, for as long as it runs."""
    if not _in_slurm(scheduler):
        yield
        return
    watching = asyncio.create_task(Watch(_Led(service), slurm.NAME, slurm.look, log.say).keep())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


class _Led:
    """The job, while this coordinator leads it, for the watch of its nodes."""

    def __init__(self, service: Service) -> None:
        self._service, self._clock = service, SystemClock()

    def machine(self) -> JobMachine | None:
        leader = self._service.leader
        if leader is None or not leader.leading() or leader.coordinator is None:
            return None
        return leader.coordinator.machine

    def now(self) -> float:
        return self._clock.now()

    def handle(self, request: Request) -> None:
        if (leader := self._service.leader) is not None:
            leader.request(request)


@dataclass(frozen=True)
class Http:
    """What a leadership needs to know of the API. `on_lead`: the folder of the run, which coordinators may share, names
    the one that leads."""

    event_stream: "EventStream | None" = None
    on_lead: Callable[[], None] = lambda: None


@contextlib.asynccontextmanager
async def _http(
    args: argparse.Namespace,
    certificates: Certificates | None,
    api: "ApiRequest | None",
    service: Service,
    files: BackgroundFiles,
    log: Log,
) -> AsyncIterator[Http]:
    """The API, or the two pages that there are without its packages, or nothing."""
    event_stream = http_flags.make_event_stream(api)
    if api is not None and event_stream is not None:
        from understudy.api.address import write_address
        from understudy.api.job import ManyHosts
        from understudy.api.setup import serving

        interface = ManyHosts(service, clock=SystemClock(), event_stream=event_stream)
        pages = {"/status": lambda refused: status(service, refused)}
        audit = RecordLog.open(files, args.run_dir / "ledger", AUDIT)
        reached_at = (args.advertise or args.listen).rpartition(":")[0]
        async with serving(api, interface, args.run_dir, log.say, audit, pages=pages, reached_at=reached_at) as server:
            log.tell("listening", f"HTTP API, health and status on port {server.port}")
            yield Http(event_stream, lambda: write_address(args.run_dir, server.url))
    elif args.http is not None:
        old = _pages(service, log)
        log.tell("listening", f"health and status on port {await old.open(args.http, certificates)}")
        try:
            yield Http()
        finally:
            await old.close()
    else:
        yield Http()


def _pages(service: Service, log: Log) -> HealthServer:
    pages: dict[str, Page] = {"/health": lambda: health(service)}
    server = HealthServer(pages, say=log.say)
    pages["/status"] = lambda: status(service, server.refused)
    return server


async def _stand(
    args: argparse.Namespace,
    name: str,
    state_store: StateStore,
    service: Service,
    http: Http,
    files: BackgroundFiles,
    past: runs.Past,
    log: Log,
) -> int | None:
    """Wait until this one leads, and lead until the end of the job (its exit code) or of the term (None)."""
    watching = asyncio.create_task(_watch_leader(state_store, service))
    try:
        term = await state_store.lead(name)
    finally:
        watching.cancel()
    decisions = RecordLog.open(files, args.run_dir / "ledger", DECISIONS)
    journals = (decisions, log, *(() if http.event_stream is None else (http.event_stream,)))
    accounts = RecordLog.open(files, args.run_dir / "ledger", GOODPUT)
    leader = Leader(
        term,
        state_store=state_store,
        clock=SystemClock(),
        journals=journals,
        say=log.say,
        past=past,
        accounts=accounts.append,
    )
    log.run = lambda: leader.run
    log.tell("leading", f"leading, term {term}", term=term)
    http.on_lead()
    try:
        await leader.begin()
    except LedgerError as error:
        raise runs.unreadable(args.job, error) from error
    if http.event_stream is not None:
        http.event_stream.recall(leader.historian.history.recoveries, leader.historian.recall())
    service.leader, service.leads = leader, name
    try:
        return await _lead(leader, state_store, log)
    finally:
        service.leader, service.leads = None, ""


async def _lead(leader: Leader, state_store: StateStore, log: Log) -> int | None:
    deposed = asyncio.create_task(state_store.deposed())
    over = asyncio.create_task(leader.over.wait())
    await asyncio.wait((deposed, over), return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    if deposed.done():
        leader.step_down(deposed.result())
    deposed.cancel()
    stop = leader.outcome
    if stop is None:
        log.tell("deposed", f"not leading any more: {leader.why_over}; standing by")
        return None
    text = f"the job {stop.outcome.value}: {sentence(stop.reason)}"
    if leader.coordinator is not None:
        log.tell("goodput", leader.coordinator.goodput.sentence())
    log.tell("end", text, exit_code=stop.exit_code, reason=stop.reason.code)
    with contextlib.suppress(Deposed):
        await _farewell(leader, log)
        await leader.record_farewell()
    return stop.exit_code


async def _farewell(leader: Leader, log: Log) -> None:
    if not leader.all_told:
        await asyncio.sleep(_FAREWELL_TIMEOUT)  # for hosts that look for a coordinator, to hear of the end
    try:
        await asyncio.wait_for(leader.lines.all_gone.wait(), _FAREWELL_TIMEOUT)
    except TimeoutError:
        log.say(f"{len(leader.lines.lines)} hosts did not leave within {_FAREWELL_TIMEOUT:g} s")


async def _watch_leader(state_store: StateStore, service: Service) -> None:
    while True:
        service.leads = await state_store.leader()
        await asyncio.sleep(_ASK_FOR_LEADER_EVERY)
