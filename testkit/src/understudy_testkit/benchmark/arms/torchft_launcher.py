"""Starts a lighthouse and every replica group of the torchft arms, and starts a group again as soon as it dies.

torchft itself leaves this to whatever runs its processes (its examples use torchrun or torchX per group). One program
for all groups does the same with less: one process per rank, and a death is seen within 50 ms. When one rank of a group
dies the others of the group are ended and all are started again, as torchrun would. It ends with 0 when every group has
ended with 0. The lighthouse listens on a free port of this machine.

A group that is stopped for `--stopped-timeout` seconds is killed and started again; it would never come back.

`python -m understudy_testkit.benchmark.arms.torchft_launcher --scenario FILE --folder FOLDER [options] --
[worker options]`
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from understudy.detection.process_state import is_stopped, process_state
from understudy_testkit.ports import free_port

_POLL = 0.05
_MANY_STARTS = 100
_LIGHTHOUSE_TIMEOUT = 60.0


@dataclass(slots=True)
class Group:
    """One replica group: its present processes, one per shard."""

    number: int
    processes: list[subprocess.Popen[bytes]]
    runs_at: float  # when it was last seen not stopped
    starts: int = 1

    @property
    def finished(self) -> bool:
        return all(process.poll() == 0 for process in self.processes)

    @property
    def died(self) -> str:
        """Which process has ended badly; empty while none has."""
        codes = {process.pid: process.poll() for process in self.processes}
        return ", ".join(f"process {pid} with {code}" for pid, code in codes.items() if code not in (None, 0))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()  # not SIGTERM: a stopped process would not hear it
            process.wait()


class Lighthouse:
    def __init__(self, options: argparse.Namespace) -> None:
        self._place = ("127.0.0.1", free_port())
        program = Path(sysconfig.get_path("scripts")) / "torchft_lighthouse"
        flags = ["--bind", "{}:{}".format(*self._place)]
        for name in ("min_replicas", "quorum_tick_ms", "join_timeout_ms", "heartbeat_timeout_ms"):
            flags += [f"--{name}", str(getattr(options, name))]
        self.process = subprocess.Popen([str(program), *flags])

    @property
    def address(self) -> str:
        return "http://{}:{}".format(*self._place)

    def wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + _LIGHTHOUSE_TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(self._place, timeout=1).close()
                return
            except OSError:
                time.sleep(_POLL)
        raise SystemExit("the lighthouse does not listen")


class Launcher:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._lighthouse = Lighthouse(options)
        self._groups: list[Group] = []

    def run(self) -> None:
        try:
            self._lighthouse.wait_until_it_listens()
            for number in range(self._options.groups):
                now = time.monotonic()
                self._groups.append(Group(number, self._start(number), runs_at=now))
            while not all(group.finished for group in self._groups):
                self._look(time.monotonic())
                time.sleep(_POLL)
        finally:
            self._end()

    def _look(self, now: float) -> None:
        if self._lighthouse.process.poll() is not None:
            raise SystemExit("the lighthouse has died")
        for group in self._groups:
            if group.finished:
                continue
            if not any(is_stopped(process_state(process.pid)) for process in group.processes):
                group.runs_at = now
            if died := group.died:
                _say(f"group {group.number} has died: {died}")
                self._start_again(group, now)
            elif now - group.runs_at > self._options.stopped_timeout:
                _say(f"group {group.number} is killed: stopped for {self._options.stopped_timeout} s")
                self._start_again(group, now)

    def _start_again(self, group: Group, now: float) -> None:
        if group.starts == _MANY_STARTS:
            raise SystemExit(f"group {group.number} has died {_MANY_STARTS} times")
        group.end()
        group.processes = self._start(group.number)
        group.starts += 1
        group.runs_at = now

    def _start(self, number: int) -> list[subprocess.Popen[bytes]]:
        options = self._options
        worker = [sys.executable, "-m", "understudy_testkit.benchmark.workers.torchft"]
        told = ["--scenario", str(options.scenario), "--folder", str(options.folder)]
        own = ["--group", str(number), "--groups", str(options.groups), *options.worker]
        environment = {**os.environ, "TORCHFT_LIGHTHOUSE": self._lighthouse.address}
        store = ["--shards", str(options.shards), "--store-port", str(free_port())]
        return [
            subprocess.Popen([*worker, *told, *own, *store, "--shard", str(shard)], env=environment)
            for shard in range(options.shards)
        ]

    def _end(self) -> None:
        for group in self._groups:
            group.end()
        self._lighthouse.process.kill()
        self._lighthouse.process.wait()


def _say(text: str) -> None:
    print(f"torchft_launcher [{time.monotonic():.3f}]: {text}", flush=True)


def _options() -> argparse.Namespace:
    """The defaults of the lighthouse are those of the command in torchft's README."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--groups", type=int, required=True, help="replica groups, spares included")
    parser.add_argument("--shards", type=int, default=1, help="ranks per group")
    parser.add_argument("--min-replicas", type=int, default=1)
    parser.add_argument("--quorum-tick-ms", type=int, default=100)
    parser.add_argument("--join-timeout-ms", type=int, default=10000)
    parser.add_argument("--heartbeat-timeout-ms", type=int, default=5000)
    parser.add_argument("--stopped-timeout", type=float, default=5.0, help="seconds until a stopped group is killed")
    parser.add_argument("worker", nargs="*", help="after `--`: for every worker")
    return parser.parse_args()


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    options = _options()
    Launcher(options).run()


if __name__ == "__main__":
    main()
