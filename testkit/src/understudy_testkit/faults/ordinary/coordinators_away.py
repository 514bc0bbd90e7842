"""Days on several hosts: coordinators that are away while a rank is lost, and one that is cut off from all hosts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy_testkit.faults import etcd_servers, namespaces
from understudy_testkit.faults.assertions import NotProven, Setup, perform, require_success
from understudy_testkit.faults.clusters import Cluster, running
from understudy_testkit.faults.namespaces import NamespaceHost, hosts

Network = dict[str, NamespaceHost]


def _setup(pause: float) -> Setup:
    script_args = ("--pause", str(pause))
    return Setup(ranks=2, spares=0, steps=120, flags=("--ledger-digest-every", "1"), script_args=script_args)


@contextmanager
def _job(folder: Path, *, in_memory: bool) -> Iterator[tuple[Cluster, Network]]:
    if (missing := namespaces.why_not() or etcd_servers.why_not()) is not None:
        raise NotProven(f"not run: {missing}")
    with (
        hosts(("boss", "state_store", "a", "b", "spare")) as network,
        etcd_servers.running_on(folder / "etcd", [network["state_store"]]) as etcd,
    ):
        cluster = Cluster(
            folder=folder / "job",
            setup=_setup(0.1),
            hosts=[network["a"], network["b"]],
            spare_hosts=[network["spare"]],
            coordinators=[network["boss"]],
            store="memory" if in_memory else etcd.address,
        )
        with running(cluster):
            cluster.wait_until(lambda: cluster.steps_done() >= 3, "the first steps", 180)
            yield cluster, network


def _end(cluster: Cluster, folder: Path, what: str, seconds: float) -> None:
    reference = require_success(perform(folder / "reference", _setup(0.0))).run
    cluster.require_identical_end(reference, what, seconds)


def away_during_a_fault(folder: Path, seconds: float) -> str:
    """The only coordinator is killed, then a rank; later a coordinator is started again."""
    with _job(folder, in_memory=False) as (cluster, network):
        leader = cluster.started["coordinator-boss"]
        leader.kill()
        cluster.kill_rank(1)
        time.sleep(seconds)
        cluster.start_coordinator(network["boss"])
        cluster.wait_until(lambda: len(cluster.recoveries()) == 1, "the replacement of the rank", 90)
        _end(cluster, folder, "coordinators away", 180)
        swaps = [rank for recovery in cluster.recoveries() for rank, _, _ in recovery.swaps]
        if swaps != [1]:
            raise NotProven(f"ranks {swaps} were replaced instead of rank 1")
    return f"identical, rank 1 replaced after {seconds:g} s without a coordinator"


def cut_off(folder: Path, seconds: float) -> str:
    """Its memory is all that it has, so no other coordinator can lead."""
    with _job(folder, in_memory=True) as (cluster, network):
        network["boss"].cut()
        time.sleep(seconds)
        network["boss"].heal()
        if cluster.started["coordinator-boss"].process.poll() is not None:
            raise NotProven(f"the coordinator ended\n{cluster.tails()}")
        _end(cluster, folder, "a coordinator cut off", 180)
        if cluster.recoveries():
            raise NotProven("a rank was replaced without need: " + "; ".join(cluster.reasons()))
    return f"identical, no rank replaced after {seconds:g} s"
