"""Nobody has a twin (FSDP2 over all ranks), and a host is lost: copies on another host bring its ranks back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from understudy.ledger.reading import Run
from understudy.protocol.reasons import Code
from understudy_testkit.faults.clusters import Cluster, running
from understudy_testkit.faults.namespaces import NamespaceHost, hosts, why_not
from understudy_testkit.faults.proving import Setup, steps_run_again

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
STEPS = 30
PATIENT = ("--host-patience", "4")  # a machine that is busy with many hosts at once is not a lost one
MODEL = ("--width", "256")  # so that a copy takes a while
FAST = Setup(mode="fsdp", ranks=3, spares=0, steps=STEPS, trainee=MODEL)  # the reference need not last
SETUP = Setup(
    mode="fsdp",
    ranks=3,
    spares=0,
    steps=STEPS,
    flags=("--digest-every", "1", "--peer-memory", "1", *PATIENT),
    trainee=("--pause", "0.05", *MODEL),
)
Network = dict[str, NamespaceHost]


@pytest.fixture
def network() -> Iterator[Network]:
    with hosts(("boss", "a", "b", "c", "spare")) as made:
        yield made


def cluster_of(network: Network, folder: Path) -> Cluster:
    return Cluster(
        folder=folder,
        setup=SETUP,
        hosts=[network[name] for name in "abc"],
        spare_hosts=[network["spare"]],
        coordinators=[network["boss"]],
    )


def ends_identical(cluster: Cluster, expected: Run) -> None:
    """With rank 1 out of the copy that rank 2 keeps, and no committed step twice."""
    cluster.require_identical_end(expected, "the job", 240)
    (recovery,) = cluster.run.recoveries
    assert [rank for rank, _, _ in recovery.swaps] == [1]
    decisions = cluster.run.decisions
    assert any(record.has(Code.COVERED) for record in decisions), cluster.reasons()
    assert sum(record.has(Code.KEEPS_COPY) for record in decisions) == 1, cluster.reasons()
    assert max(steps_run_again(cluster.run), default=0) == 0


def test_a_host_without_twins_is_killed(tmp_path: Path, network: Network, reference: Callable[[Setup], Run]) -> None:
    expected = reference(FAST)
    with running(cluster_of(network, tmp_path)) as cluster:
        cluster.wait_until(lambda: cluster.steps_done() >= 5, "step 5")
        assert network["b"].kill() >= 2
        cluster.started.pop("b").process.wait(10)
        ends_identical(cluster, expected)


def test_a_host_without_twins_is_cut_off(tmp_path: Path, network: Network, reference: Callable[[Setup], Run]) -> None:
    """Copies to it and from it are under way, and nobody tells that they will not arrive."""
    expected = reference(FAST)
    with running(cluster_of(network, tmp_path)) as cluster:
        cluster.wait_until(lambda: cluster.steps_done() >= 5, "step 5")
        network["b"].cut()
        cluster.wait_until(lambda: len(cluster.recoveries()) == 1, "its rank elsewhere")
        network["b"].heal()
        ends_identical(cluster, expected)
