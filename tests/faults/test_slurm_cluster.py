"""The Slurm that other tests use: it comes up, loses nodes as a real one does, and leaves nothing behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.slurm.cluster import SlurmCluster, why_not

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# Each task writes a beat every 0.2 s and ends when a file with the name of its node appears.
_BEATING = """\
#!/bin/bash
srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c '
    until [ -e leave-$SLURMD_NODENAME ]; do date +%s.%N >> beats-$SLURMD_NODENAME; sleep 0.2; done'
"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster(nodes=4) as made:
        yield made


def beats(cluster: SlurmCluster, node: str) -> int:
    file = cluster.folder / f"beats-{node}"
    return len(file.read_text().splitlines()) if file.exists() else 0


def beats_on(cluster: SlurmCluster, *nodes: str) -> None:
    """The tasks of these nodes go on."""
    before = {node: beats(cluster, node) for node in nodes}
    cluster.wait_until(
        lambda: all(beats(cluster, node) > before[node] + 1 for node in nodes), f"beats on {nodes}", seconds=30
    )


def leave(cluster: SlurmCluster, *nodes: str) -> None:
    for node in nodes:
        (cluster.folder / f"leave-{node}").touch()


def test_four_nodes_run_a_step(cluster: SlurmCluster) -> None:
    assert {node.state for node in cluster.nodes().values()} == {"idle"}
    printed = cluster.srun("-N4", "bash", "-c", "echo $SLURMD_NODENAME $SLURM_NODEID")
    assert sorted(printed.splitlines()) == ["n1 0", "n2 1", "n3 2", "n4 3"]
    with pytest.raises(NotProven, match="Invalid partition"):
        cluster.sbatch(_BEATING, "--partition=none")


def test_a_job_without_kill_survives_nodes_and_its_batch_host(cluster: SlurmCluster) -> None:
    job = cluster.sbatch(_BEATING, "--nodes=4", "--no-kill")
    beats_on(cluster, *cluster.names)
    assert cluster.nodes_of(job) == ["n1", "n2", "n3", "n4"] and cluster.job_fields(job)["BatchHost"] == "n1"
    assert cluster.kill_node("n1") >= 4 and cluster.kill_node("n3") >= 3  # slurmd, stepds, script and task
    cluster.wait_until(lambda: {cluster.nodes()[node].state for node in ("n1", "n3")} == {"down"}, "2 down", 60)
    assert cluster.job_state(job) == "RUNNING"
    beats_on(cluster, "n2", "n4")
    cluster.wait_until(lambda: cluster.nodes_of(job) == ["n2", "n4"], "the job without them", 60)
    leave(cluster, "n2", "n4")
    cluster.wait_until(lambda: len(cluster.hosts["n2"].processes()) == 1, "slurmd alone on n2", 30)
    assert cluster.job_state(job) == "RUNNING"  # without its batch host, it does so for ever
    cluster.start_node("n3")
    cluster.wait_until(lambda: cluster.nodes()["n3"].state == "idle", "n3 again", 60)
    cluster.cancel(job)
    cluster.wait_for_state(job, "CANCELLED", seconds=30)
    cluster.wait_until(lambda: not cluster.allocated(), "nothing allocated", 30)


def test_srun_ends_well_though_a_node_was_lost(cluster: SlurmCluster) -> None:
    job = cluster.sbatch(_BEATING, "--nodes=2", "--no-kill")
    beats_on(cluster, "n1", "n2")
    cluster.kill_node("n2")
    leave(cluster, "n1")
    assert cluster.wait_for_state(job, "COMPLETED", "FAILED", "NODE_FAIL", seconds=90) == "COMPLETED"
    cluster.wait_until(lambda: not cluster.allocated(), "nothing allocated", 30)


def test_a_drained_node_is_given_back_while_the_job_runs(cluster: SlurmCluster) -> None:
    job = cluster.sbatch(_BEATING, "--nodes=3", "--no-kill")
    beats_on(cluster, "n1", "n2", "n3")
    cluster.drain("n2", "fan 3 is slow")
    node = cluster.nodes()["n2"]
    assert (node.state, node.reason) == ("draining", "fan 3 is slow")
    leave(cluster, "n2")
    cluster.wait_until(lambda: len(cluster.hosts["n2"].processes()) == 1, "slurmd alone on n2", 30)
    cluster.leave_job_only(job, ["n1", "n3"])
    cluster.wait_until(lambda: cluster.nodes()["n2"].state == "drained", "n2 free for repair", 30)
    assert cluster.job_state(job) == "RUNNING"
    beats_on(cluster, "n1", "n3")
    cluster.resume("n2")
    cluster.wait_until(lambda: cluster.nodes()["n2"].state == "idle", "n2 again", 30)
    leave(cluster, "n1", "n3")
    assert cluster.wait_for_state(job, "COMPLETED", "FAILED", seconds=30) == "COMPLETED"


def test_nothing_is_left_behind() -> None:
    """Also after a failure, with a job under way."""
    with pytest.raises(ZeroDivisionError) as raised, SlurmCluster(nodes=2) as made:  # noqa: PT012
        made.sbatch(_BEATING, "--nodes=2", "--no-kill")
        beats_on(made, "n1", "n2")
        folder, spaces = made.folder, {host.namespace for host in made.hosts.values()}
        running = processes_with(str(made.configuration))
        raise ZeroDivisionError
    assert any("slurmctld" in note for note in raised.value.__notes__)
    assert len(running) >= 8  # slurmctld, slurmd, stepds, the script, srun and tasks
    assert not processes_with(str(folder))
    assert not folder.exists() and not spaces & set(os.listdir("/var/run/netns"))


def processes_with(text: str) -> list[int]:
    """Processes with this text in their environment or command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in known:
            found.append(int(entry.name))
    return found
