"""This host: what supervision and transfers need from its kernel."""

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from understudy.cli.examination.finding import Finding

_ENOUGH_FILES = 1024
_ENOUGH_SHARED_MEMORY = 64 << 20


def host() -> Iterator[Finding]:
    yield Finding(
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        good=platform.system() == "Linux",
        wrong=platform.system() != "Linux",
        advice="processes are supervised by means that only Linux has",
    )
    free = shutil.disk_usage("/dev/shm").free
    yield Finding(
        f"{os.cpu_count()} cores; {free >> 20} MB of shared memory",
        good=free > _ENOUGH_SHARED_MEMORY,
        advice="data loaders with workers need more (for containers: --shm-size)",
    )
    yield _memory_access()
    yield _open_files()


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
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(
        f"{soft} open files per process",
        good=soft >= _ENOUGH_FILES,
        advice="an agent needs a few per rank, and every process group some more: raise `ulimit -n`",
    )
