"""Watches a running job from outside: which process is which member, how far each is, what it costs.

Reads /proc and the progress pages; the job does not notice. Used by claims that strike from outside or measure leaks.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from understudy.detection.progress import Place, Progress, ProgressReader
from understudy.foundation.parenthood import children_of
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy_testkit.faults.assertions import NotProven

_decided: "msgspec.json.Decoder[DecisionRecord | RecoveryRecord]" = msgspec.json.Decoder(
    DecisionRecord | RecoveryRecord
)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """One worker process of the job."""

    member: str
    pid: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds: threads, open sockets, resident memory of its own in MiB."""

    threads: int
    sockets: int
    memory: float


class LiveRun:
    """A job started in the background. Leaving the `with` block ends it."""

    def __init__(self, command: Sequence[str], run_dir: Path, output: Path, world_size: int) -> None:
        self._command, self._run_dir, self._output = list(command), run_dir, output
        self._world_size = world_size

    def __enter__(self) -> "LiveRun":
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def workers(self) -> list[Seen]:
        """Every worker and spare that is alive now and has come to its join()."""
        found = []
        for pid in children_of(self.process.pid):
            path = page_of(pid)
            if path is not None and os.path.exists(path):
                found.append(Seen(Path(path).stem, pid, look(path)))
        return found

    def pages(self) -> list[str]:
        """The progress pages of its workers; their folder is the agent's."""
        found = (page_of(pid) for pid in children_of(self.process.pid))
        return [page for page in found if page is not None]

    def holders(self) -> dict[int, str]:
        """Rank -> member, by the ledger: the founders, and every swap since."""
        founders = {rank: f"m-{rank}" for rank in range(self._world_size)}
        return founders | {rank: new for record in self.recoveries() for rank, _old, new in record.swaps}

    def recoveries(self) -> list[RecoveryRecord]:
        return [record for record in decided_so_far(self._run_dir) if isinstance(record, RecoveryRecord)]

    def warm_spares(self) -> int:
        return sum(seen.progress.place is Place.PARKED for seen in self.workers())

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if self.process.poll() is not None:
                raise NotProven(f"the job ended with {self.process.returncode} before this: {what}")
            if time.monotonic() > deadline:
                raise NotProven(f"waited {seconds:g} s for: {what}")
            time.sleep(0.05)


def decided_so_far(run_dir: Path) -> list[DecisionRecord | RecoveryRecord]:
    """By a job that is still running; its last line may be unfinished, and so may one that a killed coordinator
    left, before the gap record of its successor."""
    path = run_dir / "ledger" / "decisions.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            found.append(_decided.decode(line))
    return found


def look(path: str) -> Progress:
    reader = ProgressReader(path)
    try:
        return reader.look()
    finally:
        reader.release()


def page_of(pid: int) -> str | None:
    """The progress page that a worker keeps open; its name is the member's. An agent has those of all its workers."""
    try:
        pages = {link for link in _open_files(pid) if link.endswith(".progress")}
    except OSError:
        return None
    return pages.pop() if len(pages) == 1 else None


def footprint(pid: int) -> Footprint | None:
    """None when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        links = _open_files(pid)
    except OSError:
        return None
    sockets = sum(link.startswith("socket:") for link in links)
    return Footprint(int(values["Threads"]), sockets, int(values["RssAnon"].split()[0]) / 1024)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _open_files(pid: int) -> list[str]:
    """What each of its descriptors stands for."""
    return [_link(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
