"""`understudy doctor [RUN]`: what this host can do for a recovery, and which ranks of a run could not be replaced."""

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from understudy.errors import LedgerError
from understudy.ledger.reading import read_run
from understudy.protocol.commands import DecisionKind

_BAD, _UNREADABLE = 1, 2
_TORCH = (2, 15)
_ENOUGH_FILES = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """`wrong`: nothing works like this. Otherwise it only costs something, and `what` says what."""

    what: str
    good: bool
    wrong: bool = False
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Looks at this host, and with RUN at a run: which of its ranks have no twin. Exit code 0; 1 when something "
        "keeps Understudy from working; 2 when the ledger cannot be read."
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="folder of a run")


def main(args: argparse.Namespace) -> int:
    findings = [*host()]
    if args.run is not None:
        try:
            findings += twins_of(args.run)
        except LedgerError as error:
            print(f"unreadable: {error}", file=sys.stderr)
            return _UNREADABLE
    for finding in findings:
        mark = "ok  " if finding.good else "BAD " if finding.wrong else "note"
        print(f"{mark}  {finding.what}" + (f"\n      {finding.advice}" if finding.advice and not finding.good else ""))
    return _BAD if any(finding.wrong for finding in findings) else 0


def host() -> Iterator[Finding]:
    yield Finding(
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        good=platform.system() == "Linux",
        wrong=platform.system() != "Linux",
        advice="processes are supervised by means that only Linux has",
    )
    yield _torch()
    yield Finding(
        f"{os.cpu_count()} cores; {shutil.disk_usage('/dev/shm').free >> 20} MB of shared memory",
        good=shutil.disk_usage("/dev/shm").free > 64 << 20,
        advice="data loaders with workers need more (for containers: --shm-size)",
    )
    yield _memory_access()
    yield _open_files()


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch is not installed", good=False, wrong=True, advice="pip install 'torch>=2.15'")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    right = numbers >= _TORCH
    return Finding(
        f"torch {version}", good=right, wrong=not right, advice="groups can be formed again in place from 2.15 on"
    )


def _memory_access() -> Finding:
    """May a process read the memory of another one of the same user?"""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    allowed = scope == 0 or os.geteuid() == 0
    return Finding(
        "state of ranks on this host is read from memory" if allowed else "state cannot be read from memory here",
        good=allowed,
        advice=f"kernel.yama.ptrace_scope is {scope}; with 0 a transfer between ranks of one host is faster",
    )


def _open_files() -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(
        f"{soft} open files per process",
        good=soft >= _ENOUGH_FILES,
        advice="an agent needs a few per rank, and every process group some more: raise `ulimit -n`",
    )


def twins_of(folder: Path) -> Iterator[Finding]:
    run = read_run(folder)
    warnings = [record.reason for record in run.decisions if record.kind == DecisionKind.WARN.value]
    if not warnings:
        yield Finding(f"{folder}: every rank's state was held by another rank as well", good=True)
    for warning in warnings:
        yield Finding(f"{folder}: {warning}", good=False)
