"""What happens to a running job from outside on an unusual day: processes are stopped and go on, a debugger looks at
one, the clock is set, a disk is full, read-only or does not answer."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.detection.progress import Place
from understudy.foundation.parenthood import children_of
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.watching import LiveRun

Act = Callable[[LiveRun], None]
_ATTACH_TO_ALL_THREADS = """
import ctypes, os, sys, time
libc, pid, seconds = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), float(sys.argv[2])
threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
for thread in threads:
    if libc.ptrace(16, thread, 0, 0):
        sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, 0x40000000)
print("attached", flush=True)
time.sleep(seconds)
for thread in threads:
    libc.ptrace(17, thread, 0, 0)
"""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait_for_step(job: LiveRun, step: int) -> None:
    def reached() -> bool:
        steps = [seen.progress.step for seen in job.workers() if seen.progress.place is not Place.PARKED]
        return bool(steps) and min(steps) >= step and job.warm_spares() > 0

    job.wait_until(reached, f"step {step}, and a warm spare", 180)


def rank_process(job: LiveRun, rank: int) -> int:
    return next(seen.pid for seen in job.workers() if seen.member == job.holders()[rank])


def spare_process(job: LiveRun) -> int:
    return next(seen.pid for seen in job.workers() if seen.progress.place is Place.PARKED)


def agent_process(job: LiveRun) -> int:
    return job.process.pid


def store_process(job: LiveRun) -> int:
    for pid in children_of(job.process.pid):
        if b"store_host" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise NotProven("the process of the store was not found")


def stop(which: Callable[[LiveRun], int], seconds: float, at_step: int = 6) -> Act:
    """SIGSTOP, and SIGCONT after so many seconds if it is still there."""

    def act(job: LiveRun) -> None:
        wait_for_step(job, at_step)
        pid = which(job)
        handle = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        except ProcessLookupError:
            pass  # it was replaced meanwhile
        finally:
            os.close(handle)

    return act


def trace(rank: int, seconds: float, at_step: int = 6) -> Act:
    """As a debugger does."""

    def act(job: LiveRun) -> None:
        wait_for_step(job, at_step)
        command = (sys.executable, "-c", _ATTACH_TO_ALL_THREADS, str(rank_process(job, rank)), str(seconds))
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
        if "attached" not in ended.stdout:
            raise NotProven(f"no debugger could be attached: {ended.stderr}")

    return act


def set_clock(at_step: int = 6) -> Act:
    """An hour forth, two back, and right again. It is the machine's clock."""

    def act(job: LiveRun) -> None:
        wait_for_step(job, at_step)
        before = time.time() - time.monotonic()
        try:
            for hours in (1, -1):
                _set_clock(before + time.monotonic() + 3600 * hours)
                time.sleep(3)
        finally:
            _set_clock(before + time.monotonic())

    return act


def _set_clock(seconds: float) -> None:
    to = _Time(int(seconds), int(seconds % 1 * 1e9))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.clock_settime(time.CLOCK_REALTIME, ctypes.byref(to)):
        raise NotProven(f"the clock could not be set: {os.strerror(ctypes.get_errno())}")


# -- disks -------------------------------------------------------------------------------------------------------------


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A small file system of its own, which can be filled, made read-only and frozen."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_suffix(".image")
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    _command("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    _command("mount", "-o", "loop,errors=remount-ro", str(image), str(folder))
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=False)


def _command(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if ended.returncode:
        raise NotProven(f"{' '.join(command)}: {ended.stderr.strip()}")


def fill(folder: Path, at_step: int = 6) -> Act:
    def act(job: LiveRun) -> None:
        wait_for_step(job, at_step)
        for size in (65536, 512):  # down to the last block
            with open(folder / f"filled-{size}", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    return act


def make_read_only(folder: Path, at_step: int = 6) -> Act:
    """As the kernel does after an error of the disk: files that are open for writing fail."""

    def act(job: LiveRun) -> None:
        wait_for_step(job, at_step)
        _command("mount", "-o", "remount,abort", str(folder))

    return act


def freeze(folder: Path, seconds: float, at_step: int = 6) -> Act:
    """A writer there waits that long."""

    def act(job: LiveRun) -> None:
        wait_for_step(job, at_step)
        _command("fsfreeze", "-f", str(folder))
        try:
            time.sleep(seconds)
        finally:
            _command("fsfreeze", "-u", str(folder))

    return act
