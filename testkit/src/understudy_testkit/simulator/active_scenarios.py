"""From a seed to one whole run in which ranks are asked to move, or in which bits flip: a scenario with more steps."""

from dataclasses import dataclass, replace
from random import Random

from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol.requests import (
    AbortGeneration,
    DrainHost,
    KeepSpares,
    MoveRanks,
    ReplaceRank,
    Request,
    UndrainHost,
)
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.cluster_scenarios import ClusterScenario, draw_cluster_scenario
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment, draw_fault_of_move
from understudy_testkit.simulator.scenarios import Report, Scenario, draw_scenario, run_to_the_end, simulation_of

WHEN = (1.0, 9.0)  # seconds: from the first steps on, while spares become warm


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveScenario:
    scenario: Scenario
    requests: tuple[Request, ...]


def draw_move_scenario(seed: int) -> MoveScenario:
    chance = Random(f"moves {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=chance.randint(8, 40))
    faults = scenario.faults[: chance.choice((0, 0, 1, 2))]
    if chance.random() < 0.4:
        faults = (*faults, draw_fault_of_move(chance))
    if script.fenced and not script.crossed and chance.random() < 0.2:
        script, faults = replace(script, shards=script.world_size), ()  # no rank has a twin but itself
    scenario = replace(scenario, script=script, faults=faults)
    count = chance.randint(1, 4)
    return MoveScenario(scenario=scenario, requests=tuple(_draw(chance, script.world_size) for _ in range(count)))


def _draw(chance: Random, world_size: int, hosts: tuple[HostId, ...] = ()) -> Request:
    at, rank = chance.uniform(*WHEN), Rank(chance.randrange(world_size))
    kind = chance.random()
    if hosts and kind < 0.4:
        return DrainHost(at=at, host=chance.choice(hosts), reason="maintenance")
    if kind < 0.75:
        ranks = {rank, Rank(chance.randrange(world_size))} if chance.random() < 0.3 else {rank}
        return MoveRanks(at=at, ranks=tuple(sorted(ranks)), reason="an operator wants it")
    if kind < 0.85:
        wanted = MemberId(f"m-{rank}") if chance.random() < 0.5 else None
        return ReplaceRank(at=at, rank=rank, member=wanted, reason="a monitor says that it hangs")
    if kind < 0.95 or not hosts:
        return AbortGeneration(at=at, reason="an operator wants it")
    return KeepSpares(at=at, host=chance.choice(hosts), spares=chance.randint(0, 3), reason="an operator wants it")


def play_with_moves(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    drawn = draw_move_scenario(seed)
    simulation = simulation_of(drawn.scenario, drawn.requests)
    return run_to_the_end(
        seed, simulation, f"understudy_testkit.simulator.active_scenarios.play_with_moves({seed})", drawn
    )


def play_with_flips(seed: int) -> Report:
    """Twins compare their states, and a bit of one of them changes; with or without other faults."""
    chance = Random(f"flips {seed}")
    scenario = draw_scenario(seed)
    world = scenario.script.world_size
    script = replace(scenario.script, steps=chance.randint(8, 30), check_replicas_every=chance.randint(1, 6))
    flips = tuple(
        Fault(
            kind=FaultKind.FLIP,
            moment=chance.choice((Moment.COMPUTING, Moment.COLLECTIVE, Moment.BETWEEN_STEPS)),
            rank=Rank(chance.randrange(world)),
            step=chance.randrange(1, script.steps),
        )
        for _ in range(chance.choice((1, 1, 2)))
    )
    faults = (*flips, *scenario.faults[: chance.choice((0, 0, 1))])
    drawn = replace(scenario, script=script, faults=faults)
    call = f"understudy_testkit.simulator.active_scenarios.play_with_flips({seed})"
    return run_to_the_end(seed, simulation_of(drawn), call, drawn)


def play_with_drains(seed: int) -> Report:
    """The same on many hosts, with cluster_faults and drained hosts."""
    drawn, chance = draw_cluster_scenario(seed), Random(f"drains {seed}")
    simulation = _on_hosts(seed, *_draw_for_hosts(chance, drawn))
    return run_to_the_end(
        seed, simulation, f"understudy_testkit.simulator.active_scenarios.play_with_drains({seed})", drawn
    )


def play_with_undrains(seed: int) -> Report:
    """The same, and hosts are used again, whatever was held against them: drained, lost and back, or without a reason.
    Operators ask for more spares than there are places, too."""
    drawn, chance = draw_cluster_scenario(seed), Random(f"undrains {seed}")
    hosts = tuple(place.id for place in drawn.places)
    drawn, asked = _draw_for_hosts(chance, drawn)
    requests = list(asked)
    for _ in range(chance.randint(1, 3)):
        drain = DrainHost(at=chance.uniform(*WHEN), host=chance.choice(hosts), reason="maintenance")
        again = UndrainHost(at=drain.at + chance.uniform(0.01, 6.0), host=drain.host, reason="it was repaired")
        requests += chance.choice(((drain, again), (again,), (again, drain)))
    if chance.random() < 0.5:
        more = KeepSpares(at=chance.uniform(*WHEN), host=chance.choice(hosts), spares=3, reason="to be safe")
        requests.append(more)
    simulation = _on_hosts(seed, drawn, tuple(requests))
    return run_to_the_end(
        seed, simulation, f"understudy_testkit.simulator.active_scenarios.play_with_undrains({seed})", drawn
    )


def _draw_for_hosts(chance: Random, drawn: ClusterScenario) -> tuple[ClusterScenario, tuple[Request, ...]]:
    """The same with fewer cluster_faults, and what is asked for."""
    hosts, count = tuple(place.id for place in drawn.places), chance.randint(1, 3)
    fewer = replace(drawn, cluster_faults=drawn.cluster_faults[: chance.choice((0, 1, 1, 2))])
    return fewer, tuple(_draw(chance, drawn.scenario.script.world_size, hosts) for _ in range(count))


def _on_hosts(seed: int, drawn: ClusterScenario, requests: tuple[Request, ...]) -> ClusterSimulation:
    scenario = drawn.scenario
    return ClusterSimulation(
        scenario.script,
        scenario.policy,
        places=drawn.places,
        cluster_faults=drawn.cluster_faults,
        chance=Random(f"run {seed}"),
        faults=scenario.faults,
        weather=scenario.weather,
        requests=requests,
    )
