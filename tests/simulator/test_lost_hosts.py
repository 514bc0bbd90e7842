"""Nobody has a twin, and whole hosts are lost: copies on other hosts hold every promise."""

from collections import Counter
from random import Random

import pytest

from understudy.foundation.ids import HostId
from understudy.protocol.commands import Outcome
from understudy.protocol.policy import Policy
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.cluster_faults import ClusterFault, ClusterFaultKind, HostPlan
from understudy_testkit.simulator.ladder_scenarios import play_with_lost_hosts_and_peer_memory
from understudy_testkit.simulator.reasons import kind_of_stop
from understudy_testkit.simulator.script import Script

HOSTS = tuple(HostPlan(id=HostId(name), ranks=2, spares=0) for name in "abc")
SPARES = tuple(HostPlan(id=HostId(name), ranks=0, spares=2) for name in ("s", "t"))


def run(*lost: tuple[str, float], seed: int = 1, every: int = 1) -> ClusterSimulation:
    """Three hosts with two ranks each, in training by second 6."""
    simulation = ClusterSimulation(
        Script(world_size=6, steps=60, fenced=True, shards=6, peer_snapshot_every=every),
        Policy(world_size=6, hosts=3),
        places=(*HOSTS, *SPARES),
        cluster_faults=[ClusterFault(kind=ClusterFaultKind.HOST_KILLED, at=at, host=HostId(host)) for host, at in lost],
        chance=Random(seed),
    )
    simulation.run()
    assert simulation.outcome is not None
    return simulation


def test_seeded_runs_go_on_from_copies_on_other_hosts() -> None:
    kinds = Counter(play_with_lost_hosts_and_peer_memory(seed).kind for seed in range(150))
    assert kinds["succeeded"] > 125
    assert not kinds.keys() - {"succeeded", "lost after release", "no spares allowed", "no usable host", "no live twin"}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("host", ["a", "b", "c"])
def test_one_host_may_be_lost_at_any_time(host: str, every: int) -> None:
    for seed in range(12):
        simulation = run((host, 6.0 + 0.2 * seed), seed=seed, every=every)
        assert simulation.outcome is not None and simulation.outcome.outcome is Outcome.SUCCEEDED
        assert simulation.machine.generation >= 2


def test_two_hosts_may_be_lost_one_after_the_other() -> None:
    """The second one when the first recovery is over: by then the copies are on hosts that are there."""
    for seed in range(12):
        simulation = run(("b", 6.0), ("c", 14.0 + 0.1 * seed), seed=seed)
        assert simulation.outcome is not None and simulation.outcome.outcome is Outcome.SUCCEEDED


def test_without_copies_elsewhere_the_loss_of_a_host_stops_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterSimulation, "keeper_for", lambda *_: None)
    simulation = run(("b", 7.0))
    assert simulation.outcome is not None and kind_of_stop(simulation.outcome) == "no live twin"


def test_a_host_and_its_keepers_host_at_once_are_too_much() -> None:
    simulation = run(("b", 7.0), ("c", 7.0))
    assert simulation.outcome is not None and kind_of_stop(simulation.outcome) == "no live twin"
