"""A run in acts: what is to happen is tied to steps, and not to the clock. When the first member comes to the step of
an act, spares are asked for and faults become possible; those of the act before that have not struck are forgotten."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from understudy.protocol.commands import Command, RecordDecision
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.policy import Policy
from understudy.protocol.requests import KeepSpares
from understudy_testkit.simulator.faults import Fault
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAct:
    """`spares`: numbers that are asked for one right after the other. `faults` None: as before."""

    step: int
    spares: tuple[int, ...] = ()
    faults: tuple[Fault, ...] | None = None


def play_scripted(seed: str, script: Script, policy: Policy, acts: Iterable[ScriptedAct]) -> tuple[RecordDecision, ...]:
    """All decisions of one run to its end. The same arguments give the same, times and all. Raises `Violation`."""
    simulation = ScriptedSimulation(seed, script, policy, acts)
    simulation.run()
    return tuple(simulation.decisions)


class ScriptedSimulation(Simulation):
    def __init__(self, seed: str, script: Script, policy: Policy, acts: Iterable[ScriptedAct]) -> None:
        super().__init__(script, policy, chance=Random(f"acts {seed}"))
        self.decisions: list[RecordDecision] = []
        self._acts = sorted(acts, key=lambda act: act.step)

    def obey(self, commands: tuple[Command, ...], heard_of_commit: bool) -> None:
        self.decisions += [command for command in commands if isinstance(command, RecordDecision)]
        super().obey(commands, heard_of_commit)

    def on_committed(self, member: SimulatedMember, steps: int | None = None) -> None:
        super().on_committed(member, steps)
        while self._acts and self._acts[0].step <= (member.holds or 0):
            self._begin_act(self._acts.pop(0))

    def _begin_act(self, act: ScriptedAct) -> None:
        if act.faults is not None:
            self.pending = list(act.faults)
        for number in act.spares:
            wish = KeepSpares(at=self.now, host=THIS_HOST, spares=number, reason=f"act at step {act.step}")
            self.later(0.0, self.tell_machine, wish)
