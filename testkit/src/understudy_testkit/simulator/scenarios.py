"""From a seed to one whole run: world, steps, weather, policy and faults. The same seed gives the same run."""

from dataclasses import dataclass, field
from random import Random

from understudy.protocol.policy import Policy
from understudy.protocol.requests import Request
from understudy_testkit.simulator.faults import Fault, draw_faults
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.network import Weather
from understudy_testkit.simulator.reasons import kind_of_stop
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation

WORLD_SIZES = (4, 4, 4, 6, 6, 8, 8, 12, 16, 32, 64)
"""Small worlds more often: they reach more different situations in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    seed: int
    script: Script
    policy: Policy
    weather: Weather
    faults: tuple[Fault, ...]

    def chance(self) -> Random:
        """What happens in this run, and not what it is."""
        return Random(f"run {self.seed}")


@dataclass(slots=True, kw_only=True)
class Report:
    """What one run came to."""

    seed: int
    kind: str
    seconds: float
    events: int
    generations: int
    fired: dict[str, int] = field(default_factory=dict)
    lost_messages: int = 0


def draw_scenario(seed: int) -> Scenario:
    chance = Random(seed)
    world_size = chance.choice(WORLD_SIZES)
    steps = chance.randint(3, 5)
    fenced = chance.random() < 0.6
    shards = world_size // 2 if fenced and chance.random() < 0.7 else 1
    crossed = shards > 1 and Random(f"crossed {seed}").random() < 0.25
    script = Script(world_size=world_size, steps=steps, fenced=fenced, shards=shards, crossed=crossed)
    weather = Weather(
        delay=chance.choice((0.001, 0.01, 0.1)),
        slow_share=chance.choice((0.0, 0.05, 0.3)),
        loss=chance.choice((0.0, 0.0, 0.02, 0.1, 0.2)),
        in_order=chance.random() < 0.5,
    )
    policy = Policy(
        world_size=world_size,
        spares=0 if chance.random() < 0.03 else chance.randint(1, 3),
        max_start_overs=50,
        max_deaths_per_step=50,
    )
    faults = draw_faults(chance, chance.choice((1, 2, 2, 3, 3, 4, 5)), world_size, steps, chance.choice((0.0, 0.2)))
    return Scenario(seed=seed, script=script, policy=policy, weather=weather, faults=faults)


def simulation_of(scenario: Scenario, requests: tuple[Request, ...] = ()) -> Simulation:
    return Simulation(
        scenario.script,
        scenario.policy,
        chance=scenario.chance(),
        faults=scenario.faults,
        weather=scenario.weather,
        requests=requests,
    )


def play(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    scenario = draw_scenario(seed)
    return run_to_the_end(
        seed, simulation_of(scenario), f"understudy_testkit.simulator.scenarios.play({seed})", scenario
    )


def run_to_the_end(seed: int, simulation: Simulation, call: str, scenario: object) -> Report:
    try:
        simulation.run()
    except Violation as violation:
        raise Violation(
            f"{violation}\nseed {seed} (repeat with {call}): {scenario}\n"
            f"the last events and commands:\n{simulation.tell_story()}"
        ) from violation
    assert simulation.outcome is not None
    return Report(
        seed=seed,
        kind=kind_of_stop(simulation.outcome) or "unknown",
        seconds=simulation.now,
        events=simulation.events,
        generations=simulation.machine.generation,
        fired=dict(simulation.fired),
        lost_messages=simulation.network.lost,
    )
