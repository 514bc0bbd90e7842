"""From a seed to one whole run in which swaps do not suffice: no rank has a twin and states are in peer memory, or a
process can take part in no new world, or there are no spares; on one host, or on many that are lost themselves."""

from dataclasses import replace
from random import Random

from understudy.foundation.ids import Rank
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.requests import KeepSpares
from understudy_testkit.simulator.cluster_scenarios import cluster_simulation_of, draw_cluster_scenario
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment, draw_faults
from understudy_testkit.simulator.scenarios import Report, Scenario, draw_scenario, run_to_the_end, simulation_of


def play_degraded(seed: int) -> Report:
    """No spares at first, or for good: the world goes on without replicas, and is whole when spares come."""
    chance = Random(f"degraded {seed}")
    scenario = draw_scenario(seed)
    world = min(scenario.script.world_size, 16)
    shards = chance.choice((1, 1, 2)) if world % 2 == 0 else 1
    fenced = scenario.script.fenced or shards > 1
    script = replace(
        scenario.script,
        world_size=world,
        steps=chance.randint(20, 90),
        fenced=fenced,
        shards=shards,
        crossed=False,
        replaceable=True,
    )
    faults = draw_faults(chance, chance.choice((1, 1, 2, 3)), world, script.steps, chance.choice((0.0, 0.2)))
    policy = replace(scenario.policy, world_size=world, spares=0)
    requests = tuple(
        KeepSpares(at=chance.uniform(4.0, 12.0), host=THIS_HOST, spares=chance.randint(0, 3), reason="there is a spare")
        for _ in range(chance.choice((0, 1, 1, 2)))
    )
    drawn = replace(scenario, script=script, faults=faults, policy=policy)
    return _run("play_degraded", seed, drawn, requests)


def play_with_poison(seed: int) -> Report:
    """A rank dies, and one of the others, or its replacement, can take part in no new world."""
    chance = Random(f"poison {seed}")
    scenario = draw_scenario(seed)
    world = min(scenario.script.world_size, 16)
    script = replace(scenario.script, world_size=world, steps=chance.randint(4, 10), crossed=False)
    script = replace(script, shards=min(script.shards, max(1, world // 2)))
    first = Rank(chance.randrange(world))
    poisoned = Rank((first + chance.randrange(1, world)) % world)
    faults = (
        Fault(kind=FaultKind.POISON, moment=Moment.COMPUTING, rank=poisoned, step=1),
        Fault(kind=FaultKind.KILL, moment=Moment.COLLECTIVE, rank=first, step=2),
        *draw_faults(chance, chance.choice((0, 0, 1, 2)), world, script.steps, 0.0),
    )
    policy = replace(scenario.policy, world_size=world, recovery_attempts=60)
    drawn = replace(scenario, script=script, faults=faults, policy=policy)
    return _run("play_with_poison", seed, drawn)


def play_with_peer_memory(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    chance = Random(f"peer memory {seed}")
    scenario = draw_scenario(seed)
    world = min(scenario.script.world_size, 16)
    shards = world if chance.random() < 0.7 else world // 2
    script = replace(
        scenario.script,
        world_size=world,
        steps=chance.randint(4, 16),
        fenced=True,
        shards=shards,
        crossed=False,
        peer_snapshot_every=chance.choice((1, 1, 2, 3, 5)),
    )
    faults = draw_faults(chance, chance.choice((1, 2, 2, 3, 4)), world, script.steps, chance.choice((0.0, 0.3)))
    policy = replace(scenario.policy, world_size=world)
    drawn = replace(scenario, script=script, faults=faults, policy=policy)
    return _run("play_with_peer_memory", seed, drawn)


def play_with_lost_hosts_and_peer_memory(seed: int) -> Report:
    """No rank has a twin, or only some have, and whole hosts are lost: copies on other hosts bring their ranks back."""
    chance = Random(f"lost hosts and peer memory {seed}")
    drawn = draw_cluster_scenario(seed)
    world = drawn.scenario.script.world_size
    script = replace(
        drawn.scenario.script,
        fenced=True,
        shards=world if chance.random() < 0.7 else max(1, world // 2),
        crossed=False,
        peer_snapshot_every=chance.choice((1, 1, 2, 3, 5)),
    )
    drawn = replace(drawn, scenario=replace(drawn.scenario, script=script))
    call = f"understudy_testkit.simulator.ladder_scenarios.play_with_lost_hosts_and_peer_memory({seed})"
    return run_to_the_end(seed, cluster_simulation_of(drawn), call, drawn)


def play_on_probation(seed: int) -> Report:
    """A rank is lost, and the state of a rank turns bad right after the recovery, or while it is on probation. Copies
    are in peer memory, or kept by twins that compare, or there are none."""
    chance = Random(f"probation {seed}")
    scenario = draw_scenario(seed)
    world = min(scenario.script.world_size, 16)
    alone = chance.random() < 0.5
    script = replace(
        scenario.script,
        world_size=world,
        steps=chance.randint(6, 14),
        fenced=True,
        shards=world if alone else chance.choice((1, max(1, world // 2))),
        crossed=False,
        peer_snapshot_every=chance.choice((1, 1, 2)) if alone else 0,
        check_replicas_every=0 if alone else chance.choice((0, 1, 2)),
    )
    moment = chance.choice((Moment.RESUME, Moment.RESUME, Moment.COMPUTING, Moment.COLLECTIVE))
    faults = (
        Fault(kind=FaultKind.KILL, moment=Moment.COLLECTIVE, rank=Rank(chance.randrange(world)), step=3),
        Fault(kind=FaultKind.SPOIL, moment=moment, step=4),
        *draw_faults(chance, chance.choice((0, 0, 1)), world, script.steps, 0.0),
    )
    policy = replace(scenario.policy, world_size=world, spares=2)
    script = replace(script, only_loss=chance.random() < 0.25)
    drawn = replace(scenario, script=script, faults=faults, policy=policy)
    return _run("play_on_probation", seed, drawn)


def _run(play: str, seed: int, drawn: Scenario, requests: tuple[KeepSpares, ...] = ()) -> Report:
    return run_to_the_end(seed, simulation_of(drawn, requests), f"{__name__}.{play}({seed})", (drawn, requests))
