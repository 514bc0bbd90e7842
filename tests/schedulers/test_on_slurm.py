"""What is asked of Slurm and done to it, with a real one."""

import asyncio
import shutil
import sys
from collections.abc import Iterator

import pytest

from understudy.foundation.ids import HostId
from understudy.schedulers import slurm
from understudy.schedulers.node_rules import NodeSeen, Verdict
from understudy_testkit.faults.slurm.cluster import CONTROLLER, SlurmCluster, why_not

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# The second task waits until the batch host is gone, as the leader of a job does until the job has ended.
_LAST = f"""\
#!/bin/bash
srun --no-kill --kill-on-bad-exit=0 --wait=0 -o 'log.%t' bash -c '
    {sys.executable} last.py; touch looked-$SLURM_PROCID; until [ -e gone ]; do sleep 0.2; done
    [ $SLURM_PROCID = 1 ] && {sys.executable} last.py; sleep 60'
"""
_LAST_PY = """\
import asyncio, os
from understudy.schedulers import slurm
print(asyncio.run(slurm.end_what_srun_cannot(os.environ)), flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster(nodes=2) as made:
        yield made


def look(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, NodeSeen]:
    """By an sinfo that is run on the controller's host."""
    known = cluster.environment()
    monkeypatch.setenv("SLURM_CONF", known["SLURM_CONF"])
    there = " ".join(cluster.hosts[CONTROLLER].command(str(shutil.which("sinfo", path=known["PATH"]))))
    (cluster.folder / "sinfo").write_text(f'#!/bin/sh\nexec {there} "$@"\n')
    (cluster.folder / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{cluster.folder}:{known['PATH']}")
    return {node.host: node for node in asyncio.run(slurm.look([HostId("n1"), HostId("n2"), HostId("elsewhere")]))}


def test_a_node_that_is_drained_and_used_again(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {node.verdict for node in look(cluster, monkeypatch).values()} == {Verdict.IN_USE}
    cluster.sbatch("#!/bin/bash\nsleep 100\n", "--nodes=2")
    cluster.wait_until(lambda: cluster.nodes()["n2"].state in ("allocated", "mixed"), "a job", 30)
    cluster.drain("n2", "fan 3, and 4")
    seen = look(cluster, monkeypatch)
    assert seen["n1"].verdict is Verdict.IN_USE and set(seen) == {"n1", "n2"}
    said = (seen["n2"].verdict, seen["n2"].state, seen["n2"].reason)
    assert said == (Verdict.WANTED_BACK, "draining", "fan 3, and 4")
    cluster.resume("n2")
    # Slurm says for a moment that it does not respond (`mixed*`), which is nothing to act on.
    cluster.wait_until(lambda: look(cluster, monkeypatch)["n2"].verdict is Verdict.IN_USE, "n2 in use again", 60)


def test_an_allocation_ends_though_its_batch_host_is_gone(cluster: SlurmCluster) -> None:
    (cluster.folder / "last.py").write_text(_LAST_PY)
    job = cluster.sbatch(_LAST, "--nodes=2", "--no-kill")
    cluster.wait_until((cluster.folder / "looked-1").exists, "both tasks", 60)
    assert (cluster.folder / "log.1").read_text() == "None\n" and cluster.job_state(job) == "RUNNING"
    cluster.kill_node("n1")
    (cluster.folder / "gone").touch()
    cluster.wait_for_state(job, "CANCELLED", seconds=60)
    assert f"job {job} of Slurm was cancelled" in (cluster.folder / "log.1").read_text()
    cluster.wait_until(lambda: not cluster.allocated(), "nothing allocated", 60)
