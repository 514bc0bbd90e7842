"""A real job of two hosts on this machine alone: a coordinator, agents and their ranks, with mutual TLS and a token.

Everything is on loopback addresses, so it needs no privileges; hosts that vanish need `clusters` instead. The agents
reach their coordinator by a way that can be cut.
"""

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from understudy.foundation.parenthood import die_with
from understudy_testkit.faults import coordinators
from understudy_testkit.faults.assertions import TRAIN_SCRIPT, NotProven, Setup
from understudy_testkit.faults.clusters import Started
from understudy_testkit.faults.coordinators import CoordinatorProcess
from understudy_testkit.faults.cuttable import CuttableWay, cuttable_way

HOSTS = ("first", "second")
COORDINATOR = "boss"
_HOST_TIMEOUT = "60"  # seconds until a host is lost: nothing is lost here but lines, and the machine may be busy


@dataclass(slots=True)
class AttackedJob:
    """`certificates`: with a folder per party. `environment`: what the agents get beside their own."""

    folder: Path
    setup: Setup
    token: str
    certificates: Path
    coordinator: CoordinatorProcess
    way: CuttableWay
    environment: Mapping[str, str] = field(default_factory=dict)
    agents: dict[str, Started] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def flags(self, host: str) -> tuple[str, ...]:
        """Of `understudy run`, up to the script."""
        return (
            *("--no-progress", "--run-dir", str(self.run_dir), "--coordinator", self.way.address, "--host-name", host),
            *("--nnodes", str(len(HOSTS)), "--nproc-per-node", "1", "--local-addr", "127.0.0.1"),
            *("--certs", str(self.certificates / host), "--token-file", str(self.folder / "token")),
            *("--host-timeout", _HOST_TIMEOUT, "--spares", "0", *self.setup.flags),
        )

    def script(self) -> tuple[str, ...]:
        return (*TRAIN_SCRIPT, "--mode", self.setup.mode, "--steps", str(self.setup.steps), *self.setup.script_args)

    def start_agent(self, host: str, number: int | None = None, name: str = "") -> Started:
        """`number`: its place; None for a host with spares only. `name`: of the process, if it is not the host's."""
        place = ("--spare-host",) if number is None else ("--node-rank", str(number))
        command = [sys.executable, "-m", "understudy", "run", *self.flags(host), *place, *self.script()]
        output = self.folder / f"{name or host}.txt"
        with open(output, "wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **self.environment},
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive its caller)
            )
        started = self.agents[name or host] = Started(name or host, process, output)
        return started

    def steps_done(self) -> int:
        """The newest step that is in the ledger."""
        files = self.run_dir.glob("ledger/steps-*.jsonl")
        return max((file.read_bytes().count(b"\n") for file in files), default=0) - 1

    async def wait_for_step(self, step: int, seconds: float = 600.0) -> None:
        deadline = time.monotonic() + seconds
        while self.steps_done() < step:
            if time.monotonic() > deadline:
                raise NotProven(f"step {step} was not committed within {seconds:g} s\n{self.tails()}")
            self.must_run()
            await asyncio.sleep(0.1)

    def must_run(self) -> None:
        for host in HOSTS:
            if (code := self.agents[host].process.poll()) is not None:
                raise NotProven(f"host {host} ended with {code} before its time\n{self.tails()}")

    async def wait(self, seconds: float = 300.0) -> None:
        """Until both agents have ended well."""
        for host in HOSTS:
            code = await asyncio.to_thread(self.agents[host].process.wait, seconds)
            if code != 0:
                raise NotProven(f"host {host} ended with {code}\n{self.tails()}")

    def tails(self) -> str:
        texts = {name: started.text() for name, started in self.agents.items()}
        texts["coordinator"] = self.coordinator.output.read_text()
        return "\n".join(f"--- {name}\n{text[-1500:]}" for name, text in texts.items())

    # -- what the processes of a job can see --------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """All that the agents have started and that are there."""
        return [pid for host in HOSTS for pid in _descendants(self.agents[host].process.pid)]

    def holders_of(self, secret: str) -> list[str]:
        """Processes below the agents with this secret in their environment or on their command line."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                seen = b"".join(Path(f"/proc/{pid}/{part}").read_bytes() for part in ("environ", "cmdline"))
                if secret.encode() in seen:
                    found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return found

    def readable_by_others(self) -> list[Path]:
        """What of the run's folder is not for its owner alone."""
        everything = [self.run_dir, *self.run_dir.rglob("*")]
        return [path for path in everything if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO)]


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


@contextlib.asynccontextmanager
async def running(
    folder: Path, setup: Setup, token: str, certificates: Path, environment: Mapping[str, str]
) -> AsyncIterator[AttackedJob]:
    """Both agents are started. `certificates`: with folders for the coordinator and both hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ("--certs", str(certificates / COORDINATOR))
    with coordinators.running(folder, "coordinator", token, *flags) as coordinator:
        await asyncio.to_thread(coordinator.find, r"(leading), term")
        async with cuttable_way(coordinator.address) as way:
            job = AttackedJob(folder, setup, token, certificates, coordinator, way, environment)
            try:
                for number, host in enumerate(HOSTS):
                    job.start_agent(host, number)
                yield job
            finally:
                for started in job.agents.values():
                    started.kill()
