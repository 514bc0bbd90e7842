"""Starting an arm's command, finding everything that belongs to it, and ending all of it.

Launchers put workers into sessions of their own, so a process group is not enough: every process of a run has a mark in
its environment.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from understudy_testkit.benchmark.arms.arm import Command

_MARK = "UNDERSTUDY_BENCH_RUN"


class MarkedRun:
    """A command in the background. Leaving the `with` block ends whatever is left of it."""

    def __init__(self, command: Command, output: Path) -> None:
        self._mark = secrets.token_hex(8)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **command.environment, _MARK: self._mark}
        with open(output, "wb") as file:
            self._process = subprocess.Popen(
                command.arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def __enter__(self) -> "MarkedRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            left = self.processes()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left and self._process.poll() is not None:
                return
            time.sleep(0.05)

    def processes(self) -> list[int]:
        return processes_with(_MARK, self._mark)


def processes_with(variable: str, value: str) -> list[int]:
    """All processes that were started with this variable in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def busy_share(seconds: float = 1.0) -> float:
    """How busy the machine's cores are, 0 to 1, over a short while."""

    def look() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    total, idle = look()
    time.sleep(seconds)
    total_after, idle_after = look()
    return 1.0 - (idle_after - idle) / max(1, total_after - total)


def wait_until_quiet(limit: float = 60.0, quiet: float = 0.1) -> float:
    """Returns how busy the machine still was when the wait ended."""
    deadline = time.monotonic() + limit
    while (busy := busy_share()) > quiet and time.monotonic() < deadline:
        pass
    return busy
