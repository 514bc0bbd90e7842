"""Strikes of a claim hit what they are meant to hit."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from understudy.ledger.records import StepRecord
from understudy_testkit.faults.assertions import NotProven, Setup
from understudy_testkit.faults.clusters import Cluster, Started

_HOLD = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


@dataclass
class Host:
    """Whose processes are these."""

    name: str
    pids: list[int]

    def processes(self) -> list[int]:
        return self.pids


@contextlib.contextmanager
def holding(page: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has a progress page open."""
    command = [sys.executable, "-c", _HOLD, str(page)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def cluster_of(folder: Path, host: Any) -> Cluster:
    return Cluster(folder=folder, setup=Setup(ranks=1), hosts=[host], spare_hosts=[], coordinators=[])


def write_steps(cluster: Cluster, member: str, *steps: int, torn: bytes = b"") -> None:
    ledger = cluster.run_dir / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    records = [StepRecord(step=step, rank=0, member=member, generation=1, at=0.0, batch="b") for step in steps]
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    (ledger / f"steps-{member}.jsonl").write_bytes(lines + torn)


@pytest.mark.timeout(60)
def test_the_process_of_a_rank_is_killed_and_not_its_agent(tmp_path: Path) -> None:
    """An agent has the pages of its workers; that of one worker, on a host with one. It has the lower number."""
    page = tmp_path / "m-0.progress"
    page.touch()
    with holding(page) as agent, holding(page) as worker:
        cluster = cluster_of(tmp_path, Host("a", sorted((agent.pid, worker.pid))))
        cluster.started["a"] = Started("a", agent, tmp_path / "a.txt")
        write_steps(cluster, "m-0", 0, 1)
        cluster.kill_rank(0)
        assert worker.wait(10) == -9 and agent.poll() is None


def test_the_newest_step_is_that_of_the_newest_record_whoever_wrote_it(tmp_path: Path) -> None:
    """A replacement has fewer records than its predecessor had. What is not a whole line does not count."""
    cluster = cluster_of(tmp_path, Host("a", []))
    assert cluster.steps_done() == -1
    write_steps(cluster, "m-0", 0, 1, 2, 3)
    write_steps(cluster, "m-1", 4, 5, torn=b'{"step":6')
    write_steps(cluster, "m-2")
    assert cluster.steps_done() == 5


@pytest.mark.timeout(60)
def test_waiting_ends_when_every_process_has_ended(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, Host("a", []))
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        cluster.started["a"] = Started("a", process, tmp_path / "a.txt")
        cluster.started["a"].output.touch()

        with pytest.raises(NotProven, match="every process has ended, and this did not come: a step"):
            cluster.wait_until(lambda: False, "a step", 50)
