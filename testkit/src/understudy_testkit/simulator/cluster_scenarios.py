"""From a seed to one whole run on many hosts: a scenario of one host, spread out, with cluster_faults."""

from dataclasses import dataclass, replace
from random import Random

from understudy.foundation.ids import HostId
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.cluster_faults import OF_HOSTS, ClusterFault, ClusterFaultKind, HostPlan
from understudy_testkit.simulator.scenarios import Report, Scenario, draw_scenario, run_to_the_end

FOUNDED = 1.2  # seconds: by then every host has joined


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScenario:
    scenario: Scenario
    places: tuple[HostPlan, ...]
    cluster_faults: tuple[ClusterFault, ...]


def draw_cluster_scenario(seed: int) -> ClusterScenario:
    chance = Random(f"cluster {seed}")
    scenario = draw_scenario(seed)
    per_host = chance.choice((1, 2, 2, 4) if scenario.script.world_size % 4 == 0 else (1, 2, 2))
    count = scenario.script.world_size // per_host
    places = [HostPlan(id=HostId(f"h{n}"), ranks=per_host, spares=chance.choice((0, 0, 1))) for n in range(count)]
    spare_hosts = chance.choice((0, 1, 1, 2, 2))
    places += [HostPlan(id=HostId(f"s{n}"), ranks=0, spares=per_host) for n in range(spare_hosts)]
    policy = replace(scenario.policy, hosts=count, spares=0, suspicion=chance.choice((5.0, 600.0)))
    few = chance.choice((0, 0, 1, 2))
    script = replace(scenario.script, steps=chance.randint(5, 40))  # long enough for hosts to come back
    scenario = replace(scenario, script=script, policy=policy, faults=scenario.faults[:few])
    cluster_faults = tuple(_draw_fault(chance, places) for _ in range(chance.randint(1, 4)))
    return ClusterScenario(scenario=scenario, places=tuple(places), cluster_faults=_when_founded(cluster_faults))


def _draw_fault(chance: Random, places: list[HostPlan]) -> ClusterFault:
    return ClusterFault(
        kind=chance.choice(tuple(ClusterFaultKind)),
        at=chance.uniform(0.0, 9.0),
        host=chance.choice(places).id,
        lasts=chance.choice((None, 0.3, 3.0, 15.0)),
    )


def _when_founded(cluster_faults: tuple[ClusterFault, ...]) -> tuple[ClusterFault, ...]:
    """Before that, a host that goes for good is waited for without an end, and rightly so."""
    early = any(fault.at < FOUNDED and fault.kind not in OF_HOSTS for fault in cluster_faults)
    delay = 8.0 if early else FOUNDED
    return tuple(replace(fault, at=fault.at + delay) if fault.kind in OF_HOSTS else fault for fault in cluster_faults)


def cluster_simulation_of(drawn: ClusterScenario) -> ClusterSimulation:
    scenario = drawn.scenario
    return ClusterSimulation(
        scenario.script,
        scenario.policy,
        places=drawn.places,
        cluster_faults=drawn.cluster_faults,
        chance=Random(f"run {scenario.seed}"),
        faults=scenario.faults,
        weather=scenario.weather,
    )


def play_on_cluster(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    drawn = draw_cluster_scenario(seed)
    call = f"understudy_testkit.simulator.cluster_scenarios.play_on_cluster({seed})"
    return run_to_the_end(seed, cluster_simulation_of(drawn), call, drawn)
