"""A training job on the Slurm for tests, submitted with the batch file that users have, and watched from outside."""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from understudy.ledger.reading import Run, read_run
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy_testkit.faults.assertions import NotProven, Setup
from understudy_testkit.faults.slurm.cluster import SlurmCluster
from understudy_testkit.faults.watching import decided_so_far

_TAIL = 1500


@dataclass(slots=True)
class TrainingJob:
    """One rank per node. `shared`: the folder that all nodes see, where logs go, too."""

    cluster: SlurmCluster
    id: str
    shared: Path

    @property
    def run_dir(self) -> Path:
        return self.shared / self.id / f"job-{self.id}" / "run"

    @property
    def run(self) -> Run:
        return read_run(self.run_dir)

    def log(self, node: str) -> str:
        """Of the node's task; the first node has task 0."""
        file = self.shared / f"log.{self.id}.{self.cluster.names.index(node)}"
        return file.read_text(errors="replace") if file.exists() else ""

    def holders(self) -> dict[int, str]:
        """The node of each rank, by what agents said last."""
        newest: dict[int, tuple[int, str]] = {}
        for node in self.cluster.names:
            for found in re.finditer(r"rank (\d+) is on this host: \S+, generation (\d+)", self.log(node)):
                rank, generation = int(found[1]), int(found[2])
                newest[rank] = max(newest.get(rank, (0, "")), (generation, node))
        return {rank: node for rank, (_, node) in newest.items()}

    def leader(self) -> str | None:
        """The node of the coordinator that leads the newest term."""
        terms = [
            (int(found[1]), node)
            for node in self.cluster.names
            for found in re.finditer(r"leading, term (\d+)", self.log(node))
        ]
        return max(terms)[1] if terms else None

    def steps_done(self) -> int:
        """As the member says that has told of the newest one; those that are gone tell nothing any more."""
        told = [re.findall(rb'"step":(\d+)', file.read_bytes()) for file in self.run_dir.glob("ledger/steps-*.jsonl")]
        return max((int(steps[-1]) + 1 for steps in told if steps), default=0)

    def recoveries(self) -> list[RecoveryRecord]:
        return [record for record in decided_so_far(self.run_dir) if isinstance(record, RecoveryRecord)]

    def decisions(self) -> list[DecisionRecord]:
        return [record for record in decided_so_far(self.run_dir) if isinstance(record, DecisionRecord)]

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float) -> float:
        """Returns how long it took."""
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > seconds:
                raise NotProven(f"waited {seconds:g} s for: {what}\n{self.tails()}")
            time.sleep(0.05)
        return time.monotonic() - began

    def tails(self) -> str:
        reasons = "\n".join(record.reason for record in self.decisions())
        logs = "\n".join(f"--- {node}\n{self.log(node)[-_TAIL:]}" for node in self.cluster.names)
        return f"What was decided:\n{reasons}\n{logs}"


def submit(
    cluster: SlurmCluster, batch_file: Path, setup: Setup, spare_nodes: int, script_args: tuple[str, ...]
) -> TrainingJob:
    """`setup.ranks` nodes with a rank each, and `spare_nodes` more."""
    shared, commands = cluster.folder / "shared", cluster.folder / "bin"
    shared.mkdir(exist_ok=True)
    commands.mkdir(exist_ok=True)
    command = commands / "understudy"  # as if this checkout were installed
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m understudy "$@"\n')
    command.chmod(0o755)
    job = cluster.sbatch(
        batch_file,
        f"--nodes={setup.ranks + spare_nodes}",
        "--gpus-per-node=1",
        arguments=[*setup.flags, *setup.script, "--mode", setup.mode, "--steps", str(setup.steps), *script_args],
        environment={
            "SPARE_NODES": str(spare_nodes),
            "SHARED": str(shared),
            "PATH": f"{commands}:{cluster.environment()['PATH']}",
        },
        folder=shared,
    )
    return TrainingJob(cluster, job, shared)
