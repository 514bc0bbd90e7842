"""Many hosts: whatever dies, is cut off or sleeps, every invariant holds and the job ends."""

from random import Random

import pytest

from understudy.foundation.ids import HostId
from understudy.protocol.commands import Outcome
from understudy.protocol.policy import Policy
from understudy_testkit.simulator.campaign import play_range
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.cluster_faults import ClusterFault, ClusterFaultKind, HostPlan
from understudy_testkit.simulator.cluster_scenarios import draw_cluster_scenario, play_on_cluster
from understudy_testkit.simulator.leadership import Leadership
from understudy_testkit.simulator.script import Script

A, B, SPARE = HostId("a"), HostId("b"), HostId("spare")
PHASES = (
    HostPlan(id=A, ranks=2, spares=0),
    HostPlan(id=B, ranks=2, spares=0),
    HostPlan(id=SPARE, ranks=0, spares=2),
)


def run(*cluster_faults: ClusterFault, seed: int = 1, suspicion: float = 600.0, steps: int = 40) -> ClusterSimulation:
    """Two hosts with two ranks each, whose twins are on the other host; founded and trained by second 6."""
    simulation = ClusterSimulation(
        Script(world_size=4, steps=steps, fenced=True, shards=2),
        Policy(world_size=4, hosts=2, suspicion=suspicion),
        places=PHASES,
        cluster_faults=cluster_faults,
        chance=Random(seed),
    )
    simulation.run()
    assert simulation.outcome is not None
    return simulation


def succeeded(simulation: ClusterSimulation) -> bool:
    return simulation.outcome is not None and simulation.outcome.outcome is Outcome.SUCCEEDED


def test_a_quiet_cluster_needs_one_generation_and_one_coordinator() -> None:
    simulation = run()
    assert succeeded(simulation) and simulation.machine.generation == 1 and simulation.leadership.term == 1


@pytest.mark.parametrize("lasts", [None, 3.0], ids=["for good", "comes back"])
@pytest.mark.parametrize("kind", [ClusterFaultKind.HOST_KILLED, ClusterFaultKind.HOST_CUT], ids=lambda kind: kind.value)
@pytest.mark.parametrize("host", [A, B, SPARE])
def test_a_host_vanishes_in_training(host: HostId, kind: ClusterFaultKind, lasts: float | None) -> None:
    simulation = run(ClusterFault(kind=kind, at=7.0, host=host, lasts=lasts))
    assert succeeded(simulation)
    assert simulation.machine.generation == (1 if host is SPARE else 2)


def test_a_cut_that_is_shorter_than_the_keep_alive_is_not_even_noticed() -> None:
    simulation = run(ClusterFault(kind=ClusterFaultKind.HOST_CUT, at=7.0, host=B, lasts=0.3))
    assert succeeded(simulation) and simulation.machine.generation == 1


def test_a_host_that_comes_back_takes_ranks_again_when_the_suspicion_is_over() -> None:
    simulation = run(
        ClusterFault(kind=ClusterFaultKind.HOST_CUT, at=7.0, host=B, lasts=3.0),
        ClusterFault(kind=ClusterFaultKind.HOST_KILLED, at=25.0, host=SPARE),
        suspicion=5.0,
        steps=120,
    )
    assert succeeded(simulation)
    assert {member.host for member in simulation.machine.roster.members.values()} <= {A, B}


@pytest.mark.parametrize("at", [0.2, 0.95, 2.0, 4.0, 7.0])
@pytest.mark.parametrize(
    "kind",
    [ClusterFaultKind.COORDINATOR, ClusterFaultKind.COORDINATOR_AFTER_RECORD, ClusterFaultKind.COORDINATOR_PAUSED],
    ids=lambda kind: kind.value,
)
def test_the_coordinator_goes_at_any_time(kind: ClusterFaultKind, at: float) -> None:
    simulation = run(ClusterFault(kind=kind, at=at, lasts=6.0))
    assert succeeded(simulation)
    assert simulation.leadership.term == 2 or not simulation.fired


@pytest.mark.parametrize("seed", range(12))
def test_a_host_and_the_coordinator_go_together(seed: int) -> None:
    """The coordinator dies in the middle of what it does about the host, each time at another place."""
    simulation = run(
        ClusterFault(kind=ClusterFaultKind.HOST_KILLED, at=7.0, host=B),
        ClusterFault(kind=ClusterFaultKind.COORDINATOR_ACTING, at=7.0),
        seed=seed,
    )
    assert succeeded(simulation) and simulation.leadership.term == 2


def test_a_coordinator_that_slept_is_refused_by_the_keeper() -> None:
    """A host dies while it sleeps: it wakes up, would replace the ranks, and may not record it."""
    simulation = run(
        ClusterFault(kind=ClusterFaultKind.COORDINATOR_PAUSED, at=7.0, lasts=8.0),
        ClusterFault(kind=ClusterFaultKind.HOST_KILLED, at=7.1, host=B, lasts=20.0),
        steps=300,
    )
    assert simulation.leadership.term == 2 and simulation.leadership.refused_records == 1
    assert succeeded(simulation)


def test_a_seed_repeats_a_run() -> None:
    assert draw_cluster_scenario(11) == draw_cluster_scenario(11)
    assert play_on_cluster(11) == play_on_cluster(11)


def test_many_seeds_hold() -> None:
    total = play_range(range(120), play_on_cluster)
    assert total.violations == []
    assert total.endings["succeeded"] > 90
    assert all(total.fired[kind.value] for kind in ClusterFaultKind)


@pytest.mark.parametrize("seed", [6, 45, 884, 939, 4362, 5720, 5926, 5957, 15792, 16593])
def test_seeds_that_once_broke_something(seed: int) -> None:
    assert play_on_cluster(seed).kind


def test_a_coordinator_that_does_not_record_what_it_does_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded bug: only the first generation is kept."""
    right = Leadership.record

    def lazy(leadership: Leadership) -> None:
        if leadership.facts is None:
            right(leadership)

    monkeypatch.setattr(Leadership, "record", lazy)
    assert play_range(range(40), play_on_cluster).violations
