"""One line per host and a folder that they share: no etcd, no coordinator to start, no secret to hand out. Hosts are
agents on loopback."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from understudy.detection.progress import Place
from understudy.foundation.parenthood import children_of, die_with
from understudy.ledger.reading import Run, read_run
from understudy_testkit.faults.assertions import Setup, require_identical
from understudy_testkit.faults.watching import look, page_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
_TIMEOUT = 400.0  # on a machine that may be very busy
PATIENT = ("--host-timeout", "4")  # a machine that is busy is not a lost host
SETUP = Setup(ranks=2, spares=0, steps=40, flags=("--ledger-digest-every", "1"))


@dataclass
class Hosts:
    folder: Path
    agents: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def store(self) -> str:
        return f"folder://{self.folder}/shared"

    @property
    def run_dir(self) -> Path:
        """What is the default."""
        return self.folder / "shared" / "job-job" / "run"

    def steps_done(self) -> int:
        """By every rank that tells."""
        files = self.run_dir.glob("ledger/steps-*.jsonl")
        return min((file.read_bytes().count(b"\n") for file in files), default=0)

    def start(self, host: str, *flags: str, script_args: tuple[str, ...] = ()) -> None:
        command = [
            *(sys.executable, "-m", "understudy", "run", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "0"),
            *("--store", self.store, "--host-name", host, "--local-addr", "127.0.0.1", *PATIENT, *flags),
            *(*SETUP.flags, *SETUP.script, "--mode", SETUP.mode, "--steps", str(SETUP.steps), *script_args),
        ]
        with open(self.folder / f"{host}.txt", "wb") as output:
            self.agents[host] = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (nothing may outlive the tests)
            )

    def has_warm_spare(self, host: str) -> bool:
        pages = [page_of(pid) for pid in children_of(self.agents[host].pid)]
        return any(look(page).place is Place.PARKED for page in pages if page is not None and os.path.exists(page))

    def said(self, host: str) -> str:
        return (self.folder / f"{host}.txt").read_text(errors="replace")

    def wait(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not true():
            assert time.monotonic() < deadline, f"no {what}\n" + "\n".join(map(self.said, self.agents))
            time.sleep(0.1)

    def end(self, host: str) -> int:
        try:
            return self.agents[host].wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{host} does not end:\n" + "\n".join(map(self.said, self.agents)))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        yield made
    finally:
        for agent in made.agents.values():
            agent.kill()
            agent.wait(10)


def test_the_host_of_the_leader_is_killed(hosts: Hosts, reference: Callable[[Setup], Run]) -> None:
    expected = reference(SETUP)
    slow = ("--pause", "1.0", "--pause-until", str(hosts.folder / "no-pause"))
    hosts.start("a", "--node-rank", "0", script_args=slow)
    hosts.wait(lambda: re.search(r"leading, term", hosts.said("a")), "leader on host a")
    hosts.start("b", "--node-rank", "1", script_args=slow)
    hosts.wait(lambda: "listening on" in hosts.said("b"), "coordinator on host b")
    hosts.start("c", "--spare-host", script_args=slow)
    hosts.wait(lambda: hosts.has_warm_spare("c") and hosts.steps_done() >= 3, "first steps and a warm spare")
    assert "listening on" not in hosts.said("c"), "two coordinators are enough"
    hosts.agents["a"].send_signal(signal.SIGKILL)
    assert hosts.agents["a"].wait(10) == -signal.SIGKILL
    hosts.wait(lambda: re.search(r"leading, term", hosts.said("b")), "leader on host b")
    (hosts.folder / "no-pause").touch()
    assert hosts.end("b") == 0 and hosts.end("c") == 0
    require_identical(expected, read_run(hosts.run_dir), "the job whose leader's host was killed")


def test_the_exit_code_is_the_jobs(hosts: Hosts) -> None:
    for number, host in enumerate("ab"):
        hosts.start(host, "--node-rank", str(number), script_args=("--mode", "no-such-mode"))
    assert [hosts.end("a"), hosts.end("b")] == [2, 2], "argparse's, in the script"
    assert "the job failed" in hosts.said("a") and not hosts.said("a").count("Traceback (most recent call last)")
