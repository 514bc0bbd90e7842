"""Starts jobs as a user would, and looks at their processes from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_testkit.faults.watching import page_of

MARK = "END_TO_END_TEST"
"""A variable that all processes of a test inherit, so that what is left behind can be found."""

SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE = 180.0  # seconds; a limit for a broken run, never waited for


def wait_until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := true():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s for: {what}")


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of this test, as /proc shows it."""

    pid: int
    command: str
    member: str | None

    def cpu_ticks(self) -> int:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])  # utime and stime


def processes(mark: str) -> Iterator[Seen]:
    """Every living process that carries the mark, except this one."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            content = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        variables = dict(part.split("=", 1) for part in content.decode(errors="replace").split("\0") if "=" in part)
        if variables.get(MARK) == mark and state not in "ZX":
            page = page_of(int(folder.name))
            member = None if page is None else Path(page).stem
            yield Seen(int(folder.name), command.replace(b"\0", b" ").decode(errors="replace"), member)


class Running:
    """One python command in the background. Use `with`, so that a failed test ends it too."""

    def __init__(self, folder: Path, *command: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run_dir = folder / "run"
        self._output = folder / "output.txt"
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for_output(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.output.count(text) >= times or self.process.poll() is not None, text)
        assert self.output.count(text) >= times, self.output

    def wait(self, seconds: float = 300.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:g} s:\n{self.output[-3000:]}") from None


def understudy_run(folder: Path, *script: str, ranks: int = 2, spares: int = 1, flags: tuple[str, ...] = ()) -> Running:
    return Running(
        folder,
        *("-m", "understudy", "run", "--no-progress", "--run-dir", str(folder / "run"), "--nproc-per-node", str(ranks)),
        *("--spares", str(spares), "--ledger-digest-every", "1", *flags, *script),
    )
