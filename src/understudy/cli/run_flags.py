"""What becomes of the flags of `understudy run`: one checked request. `run_parser` declares the flags."""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from understudy.agent.logs import LogPlan, parse_std
from understudy.agent.plan import LaunchPlan
from understudy.cli.placed import placement_of
from understudy.cli.policy_file import PolicyFile, read_policy_file
from understudy.cli.run_parser import add_arguments, comma_separated
from understudy.cli.shared_store import check_run
from understudy.errors import SettingsError
from understudy.placement.placing import Placement
from understudy.protocol.policy import Policy
from understudy.protocol.rungs import RungLimits
from understudy.wire.transport import split_address

_Number = TypeVar("_Number", int, float)
FORK_SERVER: tuple[str, ...] = ("-m", "understudy.training.fork_server")
STORE_COMMAND: tuple[str, ...] = (sys.executable, "-m", "understudy.groups.store_host")
_REFUSED: dict[str, tuple[object, str]] = {
    "event_log_handler": ("null", "events are in the run's ledger"),
    "logs_specs": (None, "custom log plugins are not supported; use --redirects, --tee and --log-dir"),
    "numa_binding": (None, "start the script under numactl instead (--no-python numactl ...)"),
    "virtual_local_rank": (False, "a spare learns its local rank too late for it"),
    "duplicate_stdout_filters": ([], "use --tee and filter the files"),
    "duplicate_stderr_filters": ([], "use --tee and filter the files"),
}
_TIMEOUTS = (
    *("unresponsive_timeout", "busy_timeout", "idle_timeout", "setup_timeout"),
    *("step_timeout_min", "step_timeout_factor", "warmup_timeout", "regroup_timeout"),
)
_IGNORED_ON_ONE_HOST = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf", "node_rank", "local_addr")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Everything `understudy run` needs to know, checked."""

    plan: LaunchPlan
    policy: Policy
    placement: Placement
    no_progress: bool
    signals: tuple[signal.Signals, ...]
    drain_grace: float  # seconds between a SIGTERM to this host and its end, in which its ranks move away
    rendezvous_timeout: float  # seconds without a coordinator and without a rank after which this host ends; 0: never
    leave_code: int | None  # of a host that left in an orderly way; None: 128 and the signal
    remarks: tuple[str, ...]  # flags that were accepted and have no effect
    detectors: tuple[str, ...] = ()  # their names; empty: every one that works
    responses: Mapping[str, str] = field(default_factory=dict)  # their names, by the kind of evidence


# Looking at the progress pages costs a little of a core that the ranks could use.
_LOOKS_AT_MOST_EVERY = 0.25
_LOOKS_PER_TIMEOUT = 8


def read_request(given: argparse.Namespace, environment: Mapping[str, str], run_dir: Path, live: bool) -> RunRequest:
    file = policy_file_of(given)
    args = check_run(file.beneath(given))
    placement = placement_of(args, environment)
    _refuse_what_is_not_supported(args, placement)
    policy = policy_of(args, file, placement)
    command = _command(args, environment)
    return RunRequest(
        plan=LaunchPlan(
            command=command,
            environment=environment,
            world_size=policy.world_size,
            host=placement.host.value if args.coordinator else "",
            store_host=(args.local_addr or "") if args.coordinator else "127.0.0.1",
            run_dir=run_dir,
            logs=_logs(args, run_dir, live),
            store_command=STORE_COMMAND,
            fork_server_command=_fork_server_command(args, placement, command),
            fork_founders=_forks_initial_ranks(args, placement),
            ledger_digest_every=_at_least("--ledger-digest-every", args.ledger_digest_every, 0),
            ledger_digests=args.ledger_digests,
            check_replicas_every=_at_least("--check-replicas-every", args.check_replicas_every, 0),
            peer_snapshot_every=_at_least("--peer-snapshot-every", args.peer_snapshot_every, 0),
            checkpoint_dir=str(Path(args.checkpoint_dir).absolute()) if args.checkpoint_dir else "",
            checkpoint_every=_checkpoint_every(args),
            device_metrics=_metrics_address(args.device_metrics),
            grace=5.0 if args.shutdown_timeout is None else float(args.shutdown_timeout),
            look_every=min(_LOOKS_AT_MOST_EVERY, args.unresponsive_timeout / _LOOKS_PER_TIMEOUT),
        ),
        policy=policy,
        placement=placement,
        no_progress=args.no_progress,
        signals=_signals(args.signals_to_handle),
        drain_grace=_drain_grace(args),
        rendezvous_timeout=_at_least("--rendezvous-timeout", args.rendezvous_timeout, 0.0),
        leave_code=_leave_code(args),
        remarks=_remarks(args),
        detectors=tuple(dict.fromkeys(comma_separated(args.detectors))),
        responses=_responses(args),
    )


def policy_file_of(given: argparse.Namespace) -> PolicyFile:
    """What `--policy` names, or the table of a configuration file that stands in its place."""
    if isinstance(given.policy, PolicyFile):
        return given.policy
    return PolicyFile() if given.policy is None else read_policy_file(given.policy)


def _refuse_what_is_not_supported(args: argparse.Namespace, placement: Placement) -> None:
    if placement.hosts.value.most > 1 and not args.coordinator:
        raise SettingsError(
            f"{placement.hosts.source} {placement.hosts.value}: many hosts need --store folder:///PATH, or "
            "--coordinator HOST:PORT "
            "(`understudy coordinator`)"
        )
    if args.master_addr not in ("127.0.0.1", "localhost", "::1"):
        raise SettingsError(f"--master-addr {args.master_addr}: hosts meet at the --coordinator; leave it out")
    if args.coordinator and args.local_addr in ("0.0.0.0", "::", "[::]"):
        raise SettingsError(
            f"--local-addr {args.local_addr}: the store of this host would listen on all networks, and it has no "
            "secret; give the address under which the other hosts of the job reach this one"
        )
    for flag in ("http", "health"):
        if args.coordinator and getattr(args, flag) is not None:
            raise SettingsError(f"--{flag}: on many hosts the coordinator has it (`understudy coordinator --{flag}`)")
    if args.health is not None:
        split_address("--health", args.health)
    if args.print_completion is not None:
        raise SettingsError("--print-completion is not supported")
    for name, (default, instead) in _REFUSED.items():
        if getattr(args, name) != default:
            raise SettingsError(f"--{name.replace('_', '-')} is not supported: {instead}")


def _drain_grace(args: argparse.Namespace) -> float:
    if args.drain_grace and not args.coordinator:
        raise SettingsError(
            f"--drain-grace {args.drain_grace:g}: there is no other host to move to; it needs --coordinator"
        )
    return float(args.drain_grace)


def _leave_code(args: argparse.Namespace) -> int | None:
    code: int | None = args.leave_code
    if code is not None and not 0 <= code <= 255:
        raise SettingsError(f"--leave-code {code}: an exit code is a number from 0 to 255")
    return code


def _checkpoint_every(args: argparse.Namespace) -> int:
    if args.checkpoint_every and not args.checkpoint_dir:
        raise SettingsError(f"--checkpoint-every {args.checkpoint_every}: say where, with --checkpoint-dir")
    return int(_at_least("--checkpoint-every", args.checkpoint_every, 0))


def _responses(args: argparse.Namespace) -> dict[str, str]:
    if args.on_straggler == "move" and args.coordinator:
        raise SettingsError("--on-straggler move: a host of many cannot ask for it yet; use note")
    if args.on_evidence and args.coordinator:
        raise SettingsError(f"--on-evidence {args.on_evidence}: a host of many cannot ask for it yet; leave it out")
    responses = {} if args.on_straggler == "note" else {"straggler": str(args.on_straggler)}
    for part in comma_separated(args.on_evidence):
        kind, _, response = part.partition("=")
        if not kind or not response:
            raise SettingsError(f"--on-evidence {args.on_evidence}: give KIND=RESPONSE, as in straggler=move")
        responses[kind] = response
    return responses


def _metrics_address(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise SettingsError(f"--device-metrics {text}: give a URL, as in http://localhost:9400/metrics")
    return text


def _at_least(flag: str, value: _Number, least: _Number) -> _Number:
    if not value >= least:
        raise SettingsError(f"{flag} {value:g}: must be {least:g} or more")
    return value


def policy_of(args: argparse.Namespace, file: PolicyFile, placement: Placement) -> Policy:
    """What all hosts of a job must have alike: the coordinator compares it. `args`: with the file beneath them."""
    for flag in _TIMEOUTS:
        if not getattr(args, flag) > 0:
            raise SettingsError(f"--{flag.replace('_', '-')} {getattr(args, flag)}: must be more than 0")
    if args.busy_timeout < args.unresponsive_timeout:
        raise SettingsError(
            f"--busy-timeout {args.busy_timeout:g}: a rank that answers must have at least the time of one that does "
            f"not (--unresponsive-timeout {args.unresponsive_timeout:g})"
        )
    restarts = _at_least("--max-restarts", args.max_restarts, 0)
    default = Policy(world_size=placement.world_size)
    return Policy(
        world_size=placement.world_size,
        spares=0 if args.coordinator else _at_least("--spares", args.spares, 0),
        hosts=placement.hosts.value.least,
        host_patience=args.host_timeout,
        suspicion=args.host_quarantine,
        min_healthy=_at_least("--min-healthy", args.min_healthy, 0),
        peer_memory=_at_least("--peer-snapshot-every", args.peer_snapshot_every, 0),
        rungs=_rungs(args, file.rungs()),
        attempts_per_rung=file.recovery.attempts_per_strategy,
        recovery_attempts=file.recovery.max_attempts,
        probation=file.recovery.checked_steps,
        donors_per_receiver=max(1, (os.cpu_count() or 1) // 2),  # a donor and its receiver keep one core busy each
        max_start_overs=restarts or default.max_start_overs,
        max_replacements=_at_least("--max-replacements", args.max_replacements, 0),
        max_deaths_per_step=_at_least("--max-deaths-per-step", args.max_deaths_per_step, 1),
        unresponsive_timeout=args.unresponsive_timeout,
        busy_timeout=args.busy_timeout,
        idle_timeout=args.idle_timeout,
        setup_timeout=args.setup_timeout,
        checkpoints=bool(args.checkpoint_dir),
        stall_floor=args.step_timeout_min,
        stall_factor=args.step_timeout_factor,
        preparation_limit=args.warmup_timeout,
        forming_limit=args.regroup_timeout,
    )


def _rungs(args: argparse.Namespace, limits: RungLimits) -> RungLimits:
    restarts = args.max_restarts_from_memory
    if restarts is not None:
        limits = replace(limits, restart=_at_least("--max-restarts-from-memory", restarts, 0))
    return replace(limits, degrade=0) if args.no_degrade else limits


def _command(args: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, ...]:
    script: str = args.training_script
    if args.no_python:
        if args.module:
            raise SettingsError("--no-python and --module cannot be used together")
        if shutil.which(script, path=environment.get("PATH")) is None:
            raise SettingsError(f"{script}: no such program")
        return (script, *args.training_script_args)
    if not args.module and not Path(script).exists():
        raise SettingsError(f"{script}: no such file (for a module use -m, for a program --no-python)")
    python = environment.get("PYTHON_EXEC", sys.executable)
    return (python, "-u", *(("-m",) if args.module else ()), script, *args.training_script_args)


def _forks_initial_ranks(args: argparse.Namespace, placement: Placement) -> bool:
    """With no more cores than ranks, ranks that load torch one by one wait for each other: it is loaded once."""
    if args.fork_initial_ranks != "auto":
        return bool(args.fork_initial_ranks == "always")
    return placement.ranks_per_host.value >= (os.cpu_count() or 1)


def _fork_server_command(args: argparse.Namespace, placement: Placement, command: tuple[str, ...]) -> tuple[str, ...]:
    """A program that is not run by Python cannot be forked from one that is."""
    has_spares = args.spares > 0 or args.spare_host or placement.spare_hosts > 0
    if args.no_fork_server or args.no_python or not (has_spares or _forks_initial_ranks(args, placement)):
        return ()
    return (command[0], "-u", *FORK_SERVER)


def _logs(args: argparse.Namespace, run_dir: Path, live: bool) -> LogPlan:
    run_id = args.rdzv_id if args.rdzv_id != "none" else run_dir.name
    root = Path(args.log_dir) if args.log_dir is not None else run_dir / "logs"
    try:
        only = frozenset(int(rank) for rank in comma_separated(args.local_ranks_filter))
    except ValueError:
        raise SettingsError(f"--local-ranks-filter {args.local_ranks_filter}: give ranks, as in 0,1,2") from None
    return LogPlan(
        folder=root / run_id / "attempt_0",
        redirects=parse_std("--redirects", args.redirects),
        tee=parse_std("--tee", args.tee),
        only=only,
        role=args.role,
        template=args.log_line_prefix_template,
        relayed=live,
    )


def _signals(text: str) -> tuple[signal.Signals, ...]:
    try:
        return tuple(signal.Signals[name] for name in comma_separated(text))
    except KeyError as error:
        raise SettingsError(f"--signals-to-handle {text}: there is no signal {error.args[0]}") from None


def _remarks(args: argparse.Namespace) -> tuple[str, ...]:
    """Flags that were given (their value is not the default) and have no effect here."""
    defaults = argparse.ArgumentParser()
    add_arguments(defaults)
    ignored = (*_IGNORED_ON_ONE_HOST, "master_port", "monitor_interval", "start_method")
    given = [name for name in ignored if getattr(args, name) != defaults.get_default(name)]
    return tuple(f"--{name.replace('_', '-')} has no effect on one host" for name in given)
