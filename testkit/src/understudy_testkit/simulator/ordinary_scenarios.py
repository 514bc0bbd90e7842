"""From a seed to one whole run of ordinary life: ranks that are slow but healthy at every deadline, pauses that all
share, processes that are stopped and go on, debuggers, spares that sleep, flips in the last steps, slow disks; on many
hosts also a coordinator that is cut off from all of them. With or without a real fault beside it.

If nothing really fails, nothing may be lost: then the job must succeed (`Tolerant`).
"""

from dataclasses import dataclass, replace
from random import Random

from understudy.foundation.ids import HostId, Rank
from understudy.protocol.commands import Outcome
from understudy.protocol.sentences import sentence
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.cluster_faults import ClusterFault, ClusterFaultKind, HostPlan
from understudy_testkit.simulator.cluster_scenarios import ClusterScenario, cluster_simulation_of, draw_cluster_scenario
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.network import Weather
from understudy_testkit.simulator.scenarios import Report, Scenario, draw_scenario, run_to_the_end, simulation_of
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.scripted import ScriptedAct, ScriptedSimulation
from understudy_testkit.simulator.simulation import PASSING, Simulation

_LASTS = {
    FaultKind.PAUSE: (5.0, 30.0, 59.0, 120.0, 700.0),
    FaultKind.SLEEP: (5.0, 29.0, 45.0, 120.0, 700.0),
    FaultKind.STOP: (0.5, 1.0, 1.9, 5.0, 60.0),
    FaultKind.TRACE: (5.0, 60.0, 600.0),
}
_MOMENTS = (
    *(Moment.COMPUTING, Moment.BETWEEN_STEPS, Moment.AFTER_APPLY, Moment.COLLECTIVE, Moment.FENCE),
    *(Moment.SETUP, Moment.FIRST_STEP, Moment.REHEARSE, Moment.RESUME, Moment.REGROUP, Moment.AWAITING_VERDICT),
    *(Moment.FINISHED, Moment.IDLE_SPARE),
)
_OF_ANY_RANK = (Moment.REHEARSE, Moment.IDLE_SPARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowScenario:
    scenario: Scenario
    harmless: bool  # nothing in it is a fault


def draw_slow(chance: Random, world_size: int, steps: int) -> Fault:
    kind = chance.choice(tuple(_LASTS))
    moment = chance.choice(_MOMENTS)
    all_ranks = chance.random() < 0.3 and moment not in _OF_ANY_RANK
    return Fault(
        kind=kind,
        moment=moment,
        rank=None if moment in _OF_ANY_RANK else Rank(chance.randrange(world_size)),
        step=chance.randrange(steps),
        lasts=chance.choice(_LASTS[kind]),
        all_ranks=all_ranks,
        also=Rank(chance.randrange(world_size)) if chance.random() < 0.2 else None,
    )


def draw_slow_scenario(seed: int) -> SlowScenario:
    chance = Random(f"slow {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=chance.randint(4, 10))
    if chance.random() < 0.3:
        script = replace(script, check_replicas_every=chance.randint(1, 4))
    if chance.random() < 0.3:
        script = replace(script, checkpoint_every=chance.randint(1, 3))
    faults = tuple(draw_slow(chance, script.world_size, script.steps) for _ in range(chance.randint(1, 4)))
    real = scenario.faults[: chance.choice((0, 0, 1, 2))]
    if script.check_replicas_every and chance.random() < 0.5:
        last = script.steps - chance.randint(1, min(3, script.steps - 1))
        rank = Rank(chance.randrange(script.world_size))
        real += (Fault(kind=FaultKind.FLIP, moment=Moment.COMPUTING, rank=rank, step=last),)
    policy = replace(
        scenario.policy,
        checkpoints=script.checkpoint_every > 0,
        spares=max(1, scenario.policy.spares),
        max_start_overs=50,
    )
    drawn = replace(scenario, script=script, policy=policy, faults=(*faults, *real))
    return SlowScenario(scenario=drawn, harmless=not real)


def play_slow(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    drawn = draw_slow_scenario(seed)
    simulation = simulation_of(drawn.scenario)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_slow({seed})"
    report = run_to_the_end(seed, simulation, call, drawn)
    if drawn.harmless:
        _must_succeed(simulation, seed, call)
    return report


def play_slow_on_hosts(seed: int) -> Report:
    """The same on many hosts, with a coordinator that is cut off from all of them for a while."""
    chance = Random(f"slow hosts {seed}")
    drawn: ClusterScenario = draw_cluster_scenario(seed)
    script = drawn.scenario.script
    slow = tuple(draw_slow(chance, script.world_size, script.steps) for _ in range(chance.randint(0, 2)))
    real = drawn.scenario.faults[: chance.choice((0, 0, 1))]
    isolated = ClusterFault(
        kind=ClusterFaultKind.COORDINATOR_ISOLATED, at=chance.uniform(3.0, 12.0), lasts=chance.choice((0.5, 4.0, 10.0))
    )
    cluster_faults = drawn.cluster_faults[: chance.choice((0, 0, 1))]
    scenario = replace(drawn.scenario, faults=(*slow, *real))
    drawn = replace(drawn, scenario=scenario, cluster_faults=(*cluster_faults, isolated))
    simulation = cluster_simulation_of(drawn)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_slow_on_hosts({seed})"
    report = run_to_the_end(seed, simulation, call, drawn)
    if not real and not cluster_faults and not slow:
        _must_succeed(simulation, seed, call)
    return report


def play_sleeping_spare(seed: int) -> Report:
    """A parked spare is stopped: another one takes its place, and the world itself never notices, not even at its
    end."""
    chance = Random(f"spare {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=chance.randint(20, 200))
    stop = Fault(kind=FaultKind.STOP, moment=Moment.IDLE_SPARE, lasts=chance.choice((15.0, 60.0)))
    policy = replace(scenario.policy, spares=chance.randint(1, 3))
    drawn = replace(scenario, script=script, policy=policy, weather=Weather(), faults=(stop,))
    simulation = simulation_of(drawn)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_sleeping_spare({seed})"
    report = run_to_the_end(seed, simulation, call, drawn)
    _must_succeed(simulation, seed, call)
    if simulation.machine.generation != 1:
        raise Violation(f"8: a stopped spare cost the world a generation\nseed {seed} (repeat with {call})")
    return report


def play_in_evaluations(seed: int) -> Report:
    """Ranks communicate between steps, and are lost there or anywhere else: the evaluation goes on where it was."""
    chance = Random(f"evaluations {seed}")
    scenario = draw_scenario(seed)
    world = scenario.script.world_size
    script = replace(
        scenario.script, steps=chance.randint(4, 9), tail_every=chance.randint(1, 3), tail_length=chance.randint(1, 4)
    )
    in_tail = tuple(
        Fault(
            kind=chance.choice((FaultKind.KILL, FaultKind.KILL, FaultKind.HANG)),
            moment=Moment.EVALUATING,
            rank=Rank(chance.randrange(world)) if chance.random() < 0.7 else None,
            also=Rank(chance.randrange(world)) if chance.random() < 0.2 else None,
        )
        for _ in range(chance.randint(1, 2))
    )
    faults = (*in_tail, *scenario.faults[: chance.choice((0, 0, 1))])
    if chance.random() < 0.5:  # then an evaluation may follow a step that is committed by the verdict
        faults += (Fault(kind=FaultKind.KILL, moment=Moment.FENCE, step=chance.randrange(script.steps)),)
    policy = replace(scenario.policy, spares=max(1, scenario.policy.spares))
    drawn = replace(scenario, script=script, policy=policy, faults=faults)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_in_evaluations({seed})"
    return run_to_the_end(seed, simulation_of(drawn), call, drawn)


def play_lossy(seed: int) -> Report:
    """A recovery in which two of five messages are lost: a member that has left its step is asked again, not ended."""
    chance = Random(f"lossy {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=4)
    kill = Fault(kind=FaultKind.KILL, moment=Moment.COMPUTING, rank=Rank(chance.randrange(script.world_size)), step=2)
    policy = replace(scenario.policy, spares=2)
    drawn = replace(scenario, script=script, policy=policy, weather=Weather(loss=0.4), faults=(kill,))
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_lossy({seed})"
    return run_to_the_end(seed, simulation_of(drawn), call, drawn)


def play_hang_after_recovery(seed: int) -> Report:
    """A rank was replaced, or all went back to an agreed state; then another one hangs. A member that has resumed holds
    its state again, so the one that hangs is replaced as well."""
    chance = Random(f"hang after {seed}")
    scenario = draw_scenario(seed)
    flips = chance.random() < 0.5
    size = chance.choice((3, 4)) if flips else 2
    script = Script(world_size=size, steps=30, fenced=chance.random() < 0.5, check_replicas_every=2 if flips else 0)
    first = Fault(kind=FaultKind.FLIP if flips else FaultKind.KILL, moment=Moment.COMPUTING, rank=Rank(0), step=3)
    hang = Fault(kind=FaultKind.HANG, moment=Moment.COMPUTING, rank=Rank(1), step=20)
    policy = replace(scenario.policy, world_size=size, spares=2, max_replacements=100)
    drawn = replace(scenario, script=script, policy=policy, weather=Weather(), faults=(first, hang))
    simulation = _InOrder.of(drawn)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_hang_after_recovery({seed})"
    report = run_to_the_end(seed, simulation, call, drawn)
    _must_succeed(simulation, seed, call)
    return report


def play_hang_beside_silent_host(seed: int) -> Report:
    """A rank hangs, and when that is about to be known the host of its only twin falls silent, for good or for a
    moment: until that is decided, the rank that hangs may be the last holder of its state."""
    chance = Random(f"silent host {seed}")
    scenario = draw_scenario(seed)
    script = Script(world_size=4, steps=30, fenced=True, shards=2)
    hang = Fault(kind=FaultKind.HANG, moment=Moment.COMPUTING, rank=Rank(3), step=20)
    simulation = _HostAfterHang(
        script,
        replace(scenario.policy, world_size=4, hosts=4, spares=0, max_replacements=100),
        places=(
            *(HostPlan(id=HostId(f"h{number}"), ranks=1, spares=0) for number in range(4)),
            HostPlan(id=HostId("more"), ranks=0, spares=2),
        ),
        cluster_faults=(),
        chance=Random(f"run {seed}"),
        faults=(hang,),
        weather=Weather(),
    )
    simulation.host_fault = ClusterFault(
        kind=chance.choice((ClusterFaultKind.HOST_KILLED, ClusterFaultKind.HOST_CUT)),
        at=chance.uniform(1.0, 3.0),
        lasts=chance.choice((0.5, 3.0)),
    )
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_hang_beside_silent_host({seed})"
    return run_to_the_end(seed, simulation, call, simulation.host_fault)


def play_without_kept_spares(seed: int) -> Report:
    """An operator has asked for no spares any more; then a rank hangs. A new process can be started in its place."""
    chance = Random(f"not kept {seed}")
    scenario = draw_scenario(seed)
    script = Script(world_size=4, steps=30, fenced=True, shards=chance.choice((1, 2)))
    hang = Fault(kind=FaultKind.HANG, moment=Moment.COMPUTING, rank=Rank(chance.randrange(4)), step=20)
    policy = replace(scenario.policy, world_size=4, spares=1, max_replacements=100)
    simulation = ScriptedSimulation(str(seed), script, policy, [ScriptedAct(step=5, spares=(0,), faults=(hang,))])
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_without_kept_spares({seed})"
    report = run_to_the_end(seed, simulation, call, hang)
    _must_succeed(simulation, seed, call)
    if simulation.fired["ended by hand"]:
        raise Violation(f"9: a rank that hung was left to a person\nseed {seed} (repeat with {call})")
    return report


def play_slow_transfer(seed: int) -> Report:
    """A transfer takes longer than every deadline, and something arrives all the time."""
    chance = Random(f"transfer {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=6, transfer_seconds=chance.choice((100.0, 200.0, 900.0)))
    kill = Fault(kind=FaultKind.KILL, moment=Moment.COMPUTING, rank=Rank(chance.randrange(script.world_size)), step=2)
    policy = replace(scenario.policy, spares=2)
    drawn = replace(scenario, script=script, policy=policy, weather=Weather(), faults=(kill,))
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_slow_transfer({seed})"
    return run_to_the_end(seed, simulation_of(drawn), call, drawn)


def play_transient_errors(seed: int) -> Report:
    """The same error in the setup of a replacement, twice, with a whole recovery between them: no reason to stop."""
    chance = Random(f"transient {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=12)
    rank = Rank(chance.randrange(script.world_size))
    faults = tuple(
        Fault(kind=kind, moment=moment, rank=rank, step=step)
        for step in (2, 7)
        for kind, moment in ((FaultKind.KILL, Moment.COMPUTING), (FaultKind.ERROR, Moment.REHEARSE))
    )
    policy = replace(scenario.policy, spares=3)
    drawn = replace(scenario, script=script, policy=policy, weather=Weather(), faults=faults)
    simulation = _InOrder.of(drawn)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_transient_errors({seed})"
    report = run_to_the_end(seed, simulation, call, drawn)
    if script.has_twins or not script.fenced:
        _must_succeed(simulation, seed, call)
    return report


def play_livelock(seed: int) -> Report:
    """From some step on no collective comes to its end, and nothing is lost: the job must stop, and say so."""
    chance = Random(f"livelock {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=8)
    fault = Fault(kind=FaultKind.LIVELOCK, moment=Moment.COMPUTING, step=chance.randint(2, 6))
    drawn = replace(scenario, script=script, weather=Weather(), faults=(fault,))
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_livelock({seed})"
    return run_to_the_end(seed, simulation_of(drawn), call, drawn)


def play_without_coordinator(seed: int) -> Report:
    """A rank is lost while no coordinator is there for minutes: the survivors wait, and are recovered by the next."""
    chance = Random(f"nobody leads {seed}")
    drawn: ClusterScenario = draw_cluster_scenario(seed)
    script = replace(drawn.scenario.script, steps=60)
    away = ClusterFault(kind=ClusterFaultKind.COORDINATOR, at=8.0, lasts=chance.choice((100.0, 180.0, 600.0)))
    kill = Fault(kind=FaultKind.KILL, moment=Moment.COMPUTING, rank=Rank(chance.randrange(script.world_size)), step=40)
    scenario = replace(drawn.scenario, script=script, weather=Weather(), faults=(kill,))
    spare = HostPlan(id=HostId("more"), ranks=0, spares=2)
    drawn = replace(drawn, scenario=scenario, places=(*drawn.places, spare), cluster_faults=(away,))
    simulation = cluster_simulation_of(drawn)
    call = f"understudy_testkit.simulator.ordinary_scenarios.play_without_coordinator({seed})"
    report = run_to_the_end(seed, simulation, call, drawn)
    if script.has_twins or not script.fenced:
        _must_succeed(simulation, seed, call)
    return report


class _InOrder(Simulation):
    """Faults strike one after another, each when the one before has."""

    @classmethod
    def of(cls, scenario: Scenario) -> "_InOrder":
        simulation = cls(scenario.script, scenario.policy, chance=scenario.chance(), weather=scenario.weather)
        simulation._queued = list(scenario.faults)
        simulation._next_fault()
        return simulation

    def _next_fault(self) -> None:
        if self._queued and not self.pending:
            self.pending.append(self._queued.pop(0))

    def _strike(self, moment: Moment | None, member: SimulatedMember) -> None:
        super()._strike(moment, member)
        self._next_fault()

    _queued: list[Fault]


class _HostAfterHang(ClusterSimulation):
    """So many seconds after a rank was hit, something befalls the host of its twin."""

    host_fault: ClusterFault

    def _hit(self, fault: Fault, member: SimulatedMember, ticket: int) -> None:
        super()._hit(fault, member, ticket)
        others = [other for other in self.members.values() if other.alive and other.rank is not None]
        host = next(self.host_of[one.id] for one in others if one is not member and one.holdings == member.holdings)
        self.later(self.host_fault.at, self._befall, replace(self.host_fault, host=host))


def _must_succeed(simulation: Simulation, seed: int, call: str) -> None:
    """Nothing failed, so nothing may be lost."""
    assert simulation.outcome is not None
    if simulation.outcome.outcome is not Outcome.SUCCEEDED:
        why = sentence(simulation.outcome.reason)
        raise Violation(
            f"8: nothing failed, and the job was lost: {why}\nseed {seed} (repeat with {call})\n"
            f"{simulation.tell_story()}"
        )


assert frozenset(_LASTS) == PASSING
