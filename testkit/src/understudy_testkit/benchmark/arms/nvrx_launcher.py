"""Starts ranks + spares plain processes for NVIDIA's in-process restart, and the server of the store they share.

Plain processes, because torchrun ends all of them when one dies. In-process restart never starts a process, and so
neither does this program after the beginning: each fault that ends a process uses up one of the spares, and when there
are none left the training goes on with fewer ranks. The server is a process apart, so that no rank has to outlive all
others; when it dies the training cannot go on.

It ends with 0 when the work is finished. A worker ends with 0 only after a barrier that every rank of the active world
passes after it has recorded its end, so one such worker is enough; those that faults have ended do not matter.

`python -m understudy_testkit.benchmark.arms.nvrx_launcher --scenario FILE --folder FOLDER`
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from understudy_testkit.benchmark.processes import processes_with
from understudy_testkit.benchmark.scenario import Scenario
from understudy_testkit.ports import free_port

_HOST = "127.0.0.1"
_POLL = 0.05
_MONITORS_TIMEOUT = 3.0  # each worker has a monitor process, which ends after it has told the store of its worker


class Processes:
    """The server and the workers, of which number i is rank i at the beginning."""

    def __init__(self, arguments: Sequence[str], count: int) -> None:
        self._command = (sys.executable, "-m", "understudy_testkit.benchmark.workers.nvrx", *arguments)
        self._shared = {**os.environ, "MASTER_ADDR": _HOST, "MASTER_PORT": str(free_port())}
        self._shared["TORCH_CPP_LOG_LEVEL"] = "error"  # each wait in the store that times out is a warning otherwise
        self._server = self._start({}, "--host-store")
        self._workers = [self._start(self._place(rank, count)) for rank in range(count)]

    def wait(self) -> bool:
        """Until all workers have ended. Returns whether the work is finished."""
        while any(worker.poll() is None for worker in self._workers):
            if self._server.poll() is not None:
                print("the server of the store has died", file=sys.stderr)
                return False
            time.sleep(_POLL)
        codes = [worker.returncode for worker in self._workers]
        print(f"exit codes of the workers: {codes}", file=sys.stderr)
        return 0 in codes

    def end(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
        deadline = time.monotonic() + _MONITORS_TIMEOUT
        while self._monitors() and time.monotonic() < deadline:
            time.sleep(_POLL)
        self._server.kill()
        for pid in self._monitors():
            os.kill(pid, signal.SIGKILL)
        for process in (*self._workers, self._server):
            process.wait()

    def _start(self, place: Mapping[str, str], *flags: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen((*self._command, *flags), env={**self._shared, **place}, stdin=subprocess.DEVNULL)

    def _place(self, rank: int, count: int) -> dict[str, str]:
        own = str(rank)
        return {"RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}

    def _monitors(self) -> list[int]:
        """They have left this session, but have the environment of their worker: the port is this job's alone."""
        own = {process.pid for process in (*self._workers, self._server)}
        return [pid for pid in processes_with("MASTER_PORT", self._shared["MASTER_PORT"]) if pid not in own]


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, required=True, help="the scenario as JSON")
    parser.add_argument("--folder", type=Path, required=True, help="where to record")
    options = parser.parse_args()
    scenario = msgspec.json.decode(options.scenario.read_bytes(), type=Scenario)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    arguments = ("--scenario", str(options.scenario), "--folder", str(options.folder))
    # It starts nothing later, so it gets a spare for every fault that will come: the best case.
    spares = max(scenario.spares, len(scenario.schedule()))
    processes = Processes(arguments, scenario.work.ranks + spares)
    try:
        finished = processes.wait()
    finally:
        processes.end()
    raise SystemExit(0 if finished else 1)


if __name__ == "__main__":
    main()
