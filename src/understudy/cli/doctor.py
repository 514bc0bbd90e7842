"""`understudy doctor [RUN]`: what this host can do for a recovery, the way to another one, and whether the limits of a
run fit what was seen of it. The parts are in `cli.examination`. What accelerators do is
tried on request only, for it takes long (`cli.examination.accelerators`).
"""

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from understudy.cli.examination import budget, clocks, listening, measuring, versions
from understudy.cli.examination.accelerators.acceptance import Acceptance, Wanted, parse_parts, require
from understudy.cli.examination.finding import Finding
from understudy.cli.examination.history import RunHistory, history_of
from understudy.cli.examination.host import host
from understudy.cli.token_files import read_job_tokens
from understudy.errors import LedgerError, SettingsError
from understudy.foundation.settings import JOB_TOKEN
from understudy.ledger.reading import read_run
from understudy.ledger.run import Run
from understudy.protocol.commands import DecisionKind
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code
from understudy.wire.transport import is_loopback, split_address

_BAD, _UNREADABLE = 1, 2
_LONGEST_WAIT = 3600.0
_MOST_GB = 1e6
_EVERY_ADDRESS = ("0.0.0.0", "::")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Looks at this host; with --peer at the way to another one, on which `doctor --listen` waits; with RUN at a "
        "run: ranks without a twin, and whether its limits fit. Exit code 0; 1 when something keeps Understudy from "
        "working; 2 when the ledger cannot be read or a flag cannot be used."
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="folder of a run")
    way = parser.add_argument_group("the way between two hosts")
    way.add_argument("--listen", metavar="HOST:PORT", help="wait for one examination (on the spare's host)")
    way.add_argument("--peer", metavar="HOST:PORT", help="examine the way to one that waits (from a rank's host)")
    way.add_argument("--token-file", type=Path, help="secret of both (default: $UNDERSTUDY_JOB_TOKEN)")
    way.add_argument("--wait", type=float, default=300.0, help="seconds for which --listen waits (default 300)")
    limits = parser.add_argument_group(
        "limits of the run", "as given to `understudy run`; the ledger does not keep them"
    )
    default = Policy(world_size=1)
    for flag, usual in (
        ("--step-timeout-min", default.stall_floor),
        ("--step-timeout-factor", default.stall_factor),
        ("--busy-timeout", default.busy_timeout),
        ("--idle-timeout", default.idle_timeout),
        ("--warmup-timeout", default.preparation_limit),
        ("--regroup-timeout", default.forming_limit),
        ("--host-timeout", default.host_patience),
    ):
        limits.add_argument(flag, type=float, default=usual, help="as in `understudy run` (default %(default)g)")
    limits.add_argument("--state-gb", type=float, help="GB that one rank holds (default: the largest transfer of RUN)")
    _add_accelerators(parser)


def _add_accelerators(parser: argparse.ArgumentParser) -> None:
    accelerators = parser.add_argument_group(
        "acceptance of accelerators", "kills and stops processes of its own on every device; no job may run beside it"
    )
    accelerators.add_argument(
        "--accelerators",
        action="store_true",
        help="try what only real devices can show (docs/doctor.md); 0 only if all was shown",
    )
    accelerators.add_argument(
        "--accelerators-only", metavar="PARTS", help="only these of A to F, as in A,C (default: all)"
    )
    accelerators.add_argument(
        "--device", default="cuda", help="cuda, or an emulated one of understudy-testkit (default %(default)s)"
    )
    accelerators.add_argument("--devices", type=int, default=0, help="use so many of them (default: all)")
    accelerators.add_argument("--quick", action="store_true", help="few rounds and faults: does it work at all?")
    accelerators.add_argument("--archive", metavar="FILE", type=Path, help="write what is to be sent back, as tar.gz")


def main(args: argparse.Namespace) -> int:
    token = _check(args)
    acceptance = _acceptance(args)
    try:
        run = None if args.run is None else read_run(args.run)
    except LedgerError as error:
        print(f"unreadable: {error}", file=sys.stderr)
        return _UNREADABLE
    try:
        wrong = [finding.wrong for finding in _examination(args, run, token, acceptance)]
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    incomplete = acceptance is not None and not acceptance.complete
    return _BAD if any(wrong) or incomplete else 0


def _acceptance(args: argparse.Namespace) -> Acceptance | None:
    """None: it is not asked for."""
    if not args.accelerators:
        given = [f"--{name.replace('_', '-')}" for name in ("accelerators_only", "archive") if getattr(args, name)]
        if given:
            raise SettingsError(f"{given[0]}: is for --accelerators")
        return None
    if args.devices < 0:
        raise SettingsError(f"--devices {args.devices}: must be 0 or more")
    wanted = Wanted(
        device=args.device,
        only=() if args.accelerators_only is None else parse_parts(args.accelerators_only),
        devices=args.devices,
        quick=args.quick,
        archive=args.archive,
    )
    require(wanted)
    return Acceptance(wanted, os.environ)


def _examination(
    args: argparse.Namespace, run: Run | None, token: str, acceptance: Acceptance | None
) -> Iterator[Finding]:
    """Each finding is printed when it is made: some take seconds."""
    yield from _told("this host", host())
    yield from _told("versions", versions.packages())
    yield from _told("clock", clocks.clocks())
    way = None
    if args.peer is not None:
        found = measuring.examine(*split_address("--peer", args.peer), token)
        way = found if isinstance(found, measuring.Way) else None
        yield from _told(f"way to {args.peer}", (found,) if isinstance(found, Finding) else measuring.findings(found))
    if run is not None:
        whose = versions.compared(str(run.path), run.info.versions, versions.versions_here())
        yield from _told(f"run {run.path}", (whose, *twins_of(run), *flaws_of(run)))
    if run is not None or args.state_gb is not None:
        yield from _told("limits, as given here or by default", _limits(args, run, way))
    if args.listen is not None:
        yield from _told("the other side", _listen(args, token))
    if acceptance is not None:
        for title, findings in acceptance.titles():
            yield from _told(title, findings)


def _told(title: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    print(f"-- {title}")
    for finding in findings:
        print(finding, flush=True)
        yield finding


def _check(args: argparse.Namespace) -> str:
    """Refuses what cannot be used before anything is looked at; returns the token, if there is one."""
    if args.listen is not None and args.peer is not None:
        raise SettingsError("--listen and --peer: one host waits, the other one examines")
    for flag in (
        "busy_timeout",
        "idle_timeout",
        "step_timeout_min",
        "step_timeout_factor",
        "warmup_timeout",
        "regroup_timeout",
        "state_gb",
    ):
        value = getattr(args, flag)
        if value is not None and not value > 0:
            raise SettingsError(f"--{flag.replace('_', '-')} {value:g}: must be more than 0")
    if args.state_gb is not None and not args.state_gb < _MOST_GB:
        raise SettingsError(f"--state-gb {args.state_gb:g}: give what one rank holds, in gigabytes")
    if not args.host_timeout >= 0:
        raise SettingsError(f"--host-timeout {args.host_timeout:g}: must be 0 or more")
    if not 0 < args.wait <= _LONGEST_WAIT:
        raise SettingsError(f"--wait {args.wait:g}: give seconds, at most {_LONGEST_WAIT:g}")
    if args.listen is not None:
        return _token("--listen", args.listen, args.token_file)
    return "" if args.peer is None else _token("--peer", args.peer, args.token_file)


def _token(flag: str, address: str, file: Path | None) -> str:
    """On one host there is no other party to be kept out."""
    address_host, _ = split_address(flag, address)
    if file is None and JOB_TOKEN not in os.environ:
        if is_loopback(address_host):
            return ""
        raise SettingsError(f"{flag} {address}: beyond this host both sides need the same --token-file")
    return read_job_tokens(file).own


def _listen(args: argparse.Namespace, token: str) -> Iterator[Finding]:
    address_host, port = split_address("--listen", args.listen)
    with listening.opened(address_host, port) as listener:
        port = listener.getsockname()[1]
        shown = "HOST" if address_host in _EVERY_ADDRESS else args.listen.rpartition(":")[0]
        print(f"      waiting on port {port} for {args.wait:g} s; on a rank's host:")
        print(f"      understudy doctor --peer {shown}:{port}{'' if token == '' else ' --token-file ...'}", flush=True)
        yield listening.wait_for_examination(listener, token, args.wait, versions.versions_here())


def twins_of(run: Run) -> Iterator[Finding]:
    warnings = [record for record in run.decisions if record.kind == DecisionKind.WARN.value]
    if not any(record.code in ("", Code.NO_TWIN) for record in warnings):  # an older version has written no codes
        yield Finding(f"{run.path}: every rank's state was held by another rank as well", good=True)
    for record in warnings:
        yield Finding(f"{run.path}: {record.reason}", good=False)


def flaws_of(run: Run) -> Iterator[Finding]:
    """What the ledger says of itself. The run can be judged all the same."""
    if run.conflicts:
        more = f", and {len(run.conflicts) - 1} more" if len(run.conflicts) > 1 else ""
        yield Finding(
            f"{run.path} contradicts itself at {run.conflicts[0]}{more}",
            good=False,
            advice="ranks that should hold the same did not: hold it against a run without faults (understudy verify)",
        )
    for shortfall in run.shortfalls:
        yield Finding(
            f"{run.path} is incomplete: not everything could be written by {shortfall}",
            good=False,
            advice="give --run-dir a disk with more room; training itself does not need it",
        )


def _limits(args: argparse.Namespace, run: Run | None, way: measuring.Way | None) -> Iterator[Finding]:
    policy = Policy(
        world_size=1 if run is None else run.info.world_size,
        busy_timeout=args.busy_timeout,
        idle_timeout=args.idle_timeout,
        stall_floor=args.step_timeout_min,
        stall_factor=args.step_timeout_factor,
        preparation_limit=args.warmup_timeout,
        forming_limit=args.regroup_timeout,
        host_patience=args.host_timeout,
    )
    history = RunHistory() if run is None else history_of(run)
    if args.state_gb is not None:
        history = dataclasses.replace(history, state_bytes=int(args.state_gb * 1e9))
    measured = None if way is None else budget.Measured(bandwidth=way.bandwidth, round_trip=way.round_trip)
    return budget.judge(policy, history, measured)
