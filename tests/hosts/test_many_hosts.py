"""A job over three hosts and a spare one (network namespaces): ranks, hosts, links and coordinators are lost, and
nothing shows."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from understudy.ledger.reading import Run
from understudy.protocol.reasons import Code
from understudy_testkit.faults import etcd_servers
from understudy_testkit.faults.catalogue import Fault, Kind, Place
from understudy_testkit.faults.clusters import Cluster, running
from understudy_testkit.faults.namespaces import NamespaceHost, hosts, why_not
from understudy_testkit.faults.proving import Setup

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
STEPS = 60
PATIENT = ("--host-patience", "4")  # a machine that is busy with many hosts at once is not a lost one
FAST = Setup(ranks=6, spares=0, steps=STEPS)  # the reference need not last
SETUP = Setup(ranks=6, spares=0, steps=STEPS, flags=("--digest-every", "1", *PATIENT), trainee=("--pause", "0.05"))
Network = dict[str, NamespaceHost]


@pytest.fixture
def network() -> Iterator[Network]:
    with hosts(("boss", "deputy", "a", "b", "c", "spare")) as made:
        yield made


def cluster_of(network: Network, folder: Path, *faults: Fault, **more: object) -> Cluster:
    settings: dict[str, object] = {"coordinators": [network["boss"]], **more}
    return Cluster(
        folder=folder,
        setup=SETUP,
        hosts=[network[name] for name in "abc"],
        spare_hosts=[network["spare"]],
        faults=faults,
        **settings,  # type: ignore[arg-type]
    )


def test_a_whole_host_is_killed(tmp_path: Path, network: Network, reference: Callable[[Setup], Run]) -> None:
    expected = reference(FAST)
    with running(cluster_of(network, tmp_path)) as cluster:
        cluster.wait_until(lambda: cluster.steps_done() >= 5, "step 5")
        assert network["b"].kill() >= 3
        cluster.started.pop("b").process.wait(10)
        cluster.require_identical_end(expected, "the job", 240)
        (recovery,) = cluster.run.recoveries
        assert sorted(rank for rank, _, _ in recovery.swaps) == [2, 3]
        assert 0.5 < recovery.phases["detect"] < 30.0  # the host patience, on a machine that may be busy


def test_a_rank_is_killed_and_then_a_link_is_cut_and_heals(
    tmp_path: Path, network: Network, reference: Callable[[Setup], Run]
) -> None:
    expected = reference(FAST)
    faults = (
        Fault(name="kill", kind=Kind.KILL, rank=1, place=Place.COLLECTIVE, step=3),
        Fault(name="moment", kind=Kind.DELAY, rank=2, place=Place.FORWARD, step=20),
    )
    with running(cluster_of(network, tmp_path, *faults)) as cluster:
        cluster.wait_until_struck("moment", 90)
        network["b"].cut()
        cluster.wait_until(lambda: len(cluster.recoveries()) == 2, "the ranks of b elsewhere")
        network["b"].heal()
        cluster.wait_until(lambda: any(d.code == Code.HOST_BACK for d in cluster.decisions()), "b to be back")
        cluster.require_identical_end(expected, "the job", 240)
        first, second = cluster.run.recoveries
        assert [rank for rank, _, _ in first.swaps] == [1] and [rank for rank, _, _ in second.swaps] == [2, 3]


@pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not()))
def test_a_rank_is_killed_while_nobody_leads(
    tmp_path: Path, network: Network, reference: Callable[[Setup], Run]
) -> None:
    expected = reference(FAST)
    both = [network["boss"], network["deputy"]]
    with etcd_servers.running_on(tmp_path / "etcd", [network["boss"]]) as etcd:
        cluster = cluster_of(network, tmp_path, coordinators=both, store=etcd.address)
        with running(cluster):
            cluster.wait_until(lambda: cluster.steps_done() >= 5, "step 5")
            leader = cluster.leader()
            assert leader is not None
            leader.kill()
            killed = time.monotonic()
            del cluster.started[leader.name]
            cluster.kill_rank(4)
            cluster.require_identical_end(expected, "the job", 240)
            (recovery,) = cluster.run.recoveries
            assert [rank for rank, _, _ in recovery.swaps] == [4]
            assert recovery.opened_at > killed
