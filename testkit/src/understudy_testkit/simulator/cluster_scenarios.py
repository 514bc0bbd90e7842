"""From a seed to one whole run on many hosts: a scenario of one host, spread out, with mishaps."""

from dataclasses import dataclass, replace
from random import Random

from understudy.foundation.ids import HostId
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.mishaps import OF_HOSTS, HostPlan, Mishap, MishapKind
from understudy_testkit.simulator.scenarios import Report, Scenario, draw_scenario, run_to_the_end

FOUNDED = 1.2  # seconds: by then every host has joined


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScenario:
    scenario: Scenario
    places: tuple[HostPlan, ...]
    mishaps: tuple[Mishap, ...]


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
    mishaps = tuple(_draw_mishap(chance, places) for _ in range(chance.randint(1, 4)))
    return ClusterScenario(scenario=scenario, places=tuple(places), mishaps=_when_founded(mishaps))


def _draw_mishap(chance: Random, places: list[HostPlan]) -> Mishap:
    return Mishap(
        kind=chance.choice(tuple(MishapKind)),
        at=chance.uniform(0.0, 9.0),
        host=chance.choice(places).id,
        lasts=chance.choice((None, 0.3, 3.0, 15.0)),
    )


def _when_founded(mishaps: tuple[Mishap, ...]) -> tuple[Mishap, ...]:
    """Before that, a host that goes for good is waited for without an end, and rightly so."""
    early = any(mishap.at < FOUNDED and mishap.kind not in OF_HOSTS for mishap in mishaps)
    delay = 8.0 if early else FOUNDED
    return tuple(replace(mishap, at=mishap.at + delay) if mishap.kind in OF_HOSTS else mishap for mishap in mishaps)


def cluster_simulation_of(drawn: ClusterScenario) -> ClusterSimulation:
    scenario = drawn.scenario
    return ClusterSimulation(
        scenario.script,
        scenario.policy,
        places=drawn.places,
        mishaps=drawn.mishaps,
        chance=Random(f"run {scenario.seed}"),
        faults=scenario.faults,
        weather=scenario.weather,
    )


def play_on_cluster(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    drawn = draw_cluster_scenario(seed)
    call = f"understudy_testkit.simulator.cluster_scenarios.play_on_cluster({seed})"
    return run_to_the_end(seed, cluster_simulation_of(drawn), call, drawn)
