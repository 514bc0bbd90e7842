"""A job on several hosts that are all this one: real coordinators, agents and workers on loopback addresses.

Needs no root, unlike `clusters`; a network cannot be cut here. What is killed can be started again.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from understudy.foundation.parenthood import children_of, die_with
from understudy_testkit.faults import coordinators
from understudy_testkit.faults.assertions import TRAIN_SCRIPT, NotProven, Setup
from understudy_testkit.faults.coordinators import CoordinatorProcess
from understudy_testkit.faults.watching import page_of
from understudy_testkit.ports import free_ports

_TIMEOUT = 600.0  # seconds for a broken run, on a machine that may be very busy
_NO_LEADER: dict[str, Any] = {"leading": False, "stage": None, "generation": None}


@dataclass
class LoopbackJob:
    """`hosts`: with ranks. `spare_hosts`: only with spares. `store`: where coordinators keep their facts. `seats`: the
    ports of coordinators for agents; one that is started in the place of a dead one has its port, and an API of its
    own."""

    folder: Path
    name: str
    setup: Setup
    hosts: tuple[str, ...]
    spare_hosts: tuple[str, ...] = ()
    store: str = "memory"
    seats: tuple[int, ...] = field(default_factory=lambda: tuple(free_ports(1)))
    coordinators: list[CoordinatorProcess] = field(default_factory=list)
    agents: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    _seated: dict[int, CoordinatorProcess] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.coordinators[0].http_port}"

    # -- starting and ending ------------------------------------------------------------------------------------------

    def start_coordinator(self) -> CoordinatorProcess:
        """In the first seat that is free."""
        taken = {port for port, one in self._seated.items() if one.process.poll() is None}
        port = next(port for port in self.seats if port not in taken)
        flags = ("--job", self.name, "--store", self.store, "--listen", f"127.0.0.1:{port}")
        name = f"coordinator-{len(self.coordinators)}"
        started = self._stack.enter_context(coordinators.running(self.folder, name, self.token, *flags))
        self._seated[port] = started
        self.coordinators.append(started)
        return started

    def start_agent(self, host: str) -> None:
        spare, number = host in self.spare_hosts, (*self.hosts, *self.spare_hosts).index(host)
        addresses = [f"127.0.0.1:{port}" for port in self.seats]
        command = [
            *(sys.executable, "-m", "understudy", "run", "--no-progress", "--run-dir", str(self.run_dir)),
            *("--job", self.name, "--coordinator", ",".join(addresses), "--host-name", host),
            *("--nnodes", str(len(self.hosts)), "--nproc-per-node", str(self.setup.ranks // len(self.hosts))),
            *("--local-addr", "127.0.0.1", "--token-file", str(self.folder / "token")),
            *("--spares", str(self.setup.spares), *(("--spare-host",) if spare else ("--node-rank", str(number)))),
            *(*self.setup.flags, *TRAIN_SCRIPT, "--mode", self.setup.mode, "--steps", str(self.setup.steps)),
            *("--pause-until", str(self.folder / "no-pause"), *self.setup.script_args),
        ]
        with open(self.folder / f"{host}.txt", "ab") as output:
            self.agents[host] = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
            )

    def summon(self) -> None:
        """All hosts come; that takes a while."""
        for host in (*self.hosts, *self.spare_hosts):
            self.start_agent(host)

    def begin(self) -> None:
        """Returns when it has trained for some steps, and its spares are warm."""
        if not self.agents:
            self.summon()
        self.wait_until(lambda: (self.job().get("committed_step") or 0) >= 3, "the first steps")
        if self.spare_hosts or self.setup.spares:
            self.wait_until(lambda: self.job()["spares_warm"] > 0, "a warm spare")

    def finish(self) -> None:
        """It trains to its end without a pause. Returns when its coordinators have ended."""
        (self.folder / "no-pause").touch()
        for coordinator in self.coordinators:
            try:
                code = coordinator.process.wait(_TIMEOUT)
            except subprocess.TimeoutExpired:
                raise NotProven(f"{self.name} did not come to its end\n{self.tails()}") from None
            if code not in (0, -signal.SIGKILL):
                raise NotProven(f"{self.name} ended with {code}\n{self.tails()}")

    def end(self) -> None:
        """Ask all processes to leave, coordinators first, and wait until their part of the ledger is written."""
        leaving = [one.process for one in self.coordinators], list(self.agents.values())
        for processes in leaving:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(_TIMEOUT)
                except subprocess.TimeoutExpired:
                    raise NotProven(f"{self.name}: a process does not leave\n{self.tails()}") from None

    def close(self) -> None:
        for agent in self.agents.values():
            agent.kill()  # its workers end with it
            agent.wait(10)
        self._stack.close()

    # -- looking ------------------------------------------------------------------------------------------------------

    def ask(self, page: str) -> Any:
        """Of the coordinator that leads; None: none does."""
        for coordinator in reversed(self.coordinators):
            if coordinator.process.poll() is not None:
                continue
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{coordinator.http_port}"
                if _get(f"{url}/health")["leading"]:
                    return _get(url + page)
        return None

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("/v1/job") or _NO_LEADER
        return found

    def leader(self) -> CoordinatorProcess | None:
        for coordinator in self.coordinators:
            if coordinator.process.poll() is None:
                with contextlib.suppress(OSError):
                    if coordinator.status("/health")["leading"]:
                        return coordinator
        return None

    def pid_of(self, member: str) -> int | None:
        agents = [agent for agent in self.agents.values() if agent.poll() is None]
        pids = [pid for agent in agents for pid in children_of(agent.pid)]
        return next((pid for pid in pids if Path(page_of(pid) or "").stem == member), None)

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = _TIMEOUT) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise NotProven(f"{self.name}: waited {seconds:g} s for {what}\n{self.tails()}")
            time.sleep(0.1)

    def tails(self) -> str:
        files = sorted(self.folder.glob("*.txt"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill_rank(self, rank: int, with_signal: signal.Signals = signal.SIGKILL) -> bool:
        """False: no member holds it now."""
        members = self.ask("/v1/members") or []
        held = next((one["member"] for one in members if one["rank"] == rank), None)
        pid = None if held is None else self.pid_of(held)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, with_signal)
        return True

    def kill_host(self, host: str) -> None:
        """Its agent, and with it all that it started."""
        self.agents[host].kill()
        self.agents[host].wait(10)

    def kill_coordinator(self) -> None:
        """The one that leads."""
        leader = self.leader()
        if leader is None:
            raise NotProven(f"{self.name}: no coordinator leads")
        leader.process.kill()
        leader.process.wait(10)

    def lose_a_rank(self) -> None:
        """And wait until the world goes on, with a spare in its place or without it."""
        before = int(self.job()["generation"])
        if not self.kill_rank(self.setup.ranks - 1):
            raise NotProven(f"{self.name}: no member holds the rank that is to be lost")
        self.wait_until(lambda: self._trains_after(before), "the world to go on")

    def _trains_after(self, generation: int) -> bool:
        job = self.job()
        return job["stage"] == "training" and int(job["generation"]) > generation


@contextlib.contextmanager
def running(
    folder: Path,
    name: str,
    setup: Setup,
    *,
    hosts: Sequence[str] = ("a", "b"),
    spare_hosts: Sequence[str] = (),
    standbys: int = 0,
    store: str = "memory",
) -> Iterator[LoopbackJob]:
    """Its coordinators run; its hosts come with `begin`."""
    folder.mkdir(parents=True)
    seats = tuple(free_ports(1 + standbys))
    job = LoopbackJob(folder, name, setup, tuple(hosts), tuple(spare_hosts), store, seats)
    try:
        for _ in seats:
            job.start_coordinator()
        yield job
    finally:
        job.close()


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        return json.load(answer)
