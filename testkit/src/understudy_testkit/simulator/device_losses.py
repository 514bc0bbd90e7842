"""From a seed to one whole run on a host whose devices are lost, with processes on them. The host has as many devices
as ranks, or a few more; what a fault means for its device is drawn with it. In some runs one rank is struck again and
again, and nothing is known of its faults.

Knows on which device each process is, as it was told. Device queues are elsewhere (`device_scenarios`).
"""

from dataclasses import replace
from random import Random

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol import events as ev
from understudy.protocol.causes import Afterwards, Cause, CauseKind, DeviceFault
from understudy.protocol.commands import AssignRank, Command, ResumeAt, StartMember
from understudy.protocol.policy import Policy
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.network import Weather
from understudy_testkit.simulator.scenarios import Report, draw_scenario, run_to_the_end
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation

_OF_DEVICES = 0.6  # the share of faults that strike a device
_MEANINGS = (Afterwards.NEVER, Afterwards.NEVER, Afterwards.UNKNOWN, Afterwards.AGAIN)
_TWICE = 2  # faults of which nothing is known, after which a device is not used any more


class LostDevices(Simulation):
    """`devices`: of the host. `meanings`: of a fault for its device, one of them by chance."""

    def __init__(
        self,
        script: Script,
        policy: Policy,
        *,
        devices: int,
        meanings: tuple[Afterwards, ...],
        chance: Random,
        faults: tuple[Fault, ...],
        weather: Weather,
    ) -> None:
        super().__init__(script, policy, chance=chance, faults=faults, weather=weather)
        self.devices, self._meanings = devices, meanings
        self._device_of: dict[MemberId, int | None] = {}
        self._unknown: dict[int, int] = {}

    def _begin(self) -> None:
        self._announce_requests()
        self.tell_machine(ev.JobStarted(at=0.0, devices=self.devices))

    def tell_machine(self, event: ev.Event) -> None:
        if isinstance(event, ev.MemberLost) and not self.machine.released:
            self._learn(event)
        super().tell_machine(event)

    def _learn(self, event: ev.MemberLost) -> None:
        """From now on the machine knows it too."""
        fault, device = event.cause.device_fault, self._device_of.get(event.member)
        if fault is None or device is None or event.member not in self.machine.roster.members:
            return
        if fault.afterwards is Afterwards.UNKNOWN:
            self._unknown[device] = self._unknown.get(device, 0) + 1
        if fault.afterwards is Afterwards.NEVER or self._unknown.get(device, 0) >= _TWICE:
            self.lost_devices.add(device)

    def obey(self, commands: tuple[Command, ...], heard_of_commit: bool) -> None:
        for command in commands:
            if isinstance(command, StartMember | AssignRank):
                self._put(command)
            elif isinstance(command, ResumeAt):
                self._look_at_ranks(command)
        super().obey(commands, heard_of_commit)

    def _put(self, command: StartMember | AssignRank) -> None:
        self._device_of[command.member] = command.device
        if command.member in self.machine.round.state.killed:
            return
        if command.device is None or command.device in self.lost_devices:
            raise Violation(f"11: {command.member} is put on device {command.device}, which was lost or is none")

    def _look_at_ranks(self, verdict: ResumeAt) -> None:
        users: dict[int | None, MemberId] = {}
        for member in verdict.members:
            if member in verdict.leavers:
                continue
            device = self._device_of[member]
            if device in users:
                raise Violation(f"11: {member} and {users[device]} both go on with device {device}")
            users[device] = member

    def _hit(self, fault: Fault, member: SimulatedMember, ticket: int) -> None:
        if fault.kind is not FaultKind.DEVICE:
            super()._hit(fault, member, ticket)
            return
        if not self._can_be_hit(fault, member) or self._device_of.get(member.id) is None:
            return
        afterwards = self.chance.choice(self._meanings)
        self.fired[f"device: {afterwards.value}"] += 1
        self.end(member, _cause(member, afterwards))


def _cause(member: SimulatedMember, afterwards: Afterwards) -> Cause:
    """Nobody's own fault, so that the same one may come again."""
    said = DeviceFault(text=f"a fault ({afterwards.value})", afterwards=afterwards)
    if afterwards is Afterwards.NEVER:
        return Cause(
            kind=CauseKind.EXIT, detail="its device is gone", exit_code=71, step=member.holds, device_fault=said
        )
    return Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9, step=member.holds, device_fault=said)


def _on_devices(faults: tuple[Fault, ...], chance: Random, again_and_again: bool) -> tuple[Fault, ...]:
    if again_and_again:
        return tuple(Fault(kind=FaultKind.DEVICE, moment=Moment.COMPUTING, rank=Rank(0)) for _ in range(4))
    return tuple(
        replace(fault, kind=FaultKind.DEVICE, also=None) if chance.random() < _OF_DEVICES else fault for fault in faults
    )


def play_with_lost_devices(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    chance = Random(f"lost devices {seed}")
    scenario = draw_scenario(seed)
    script = replace(scenario.script, steps=chance.randint(3, 8), replaceable=chance.random() < 0.3, crossed=False)
    again_and_again = chance.random() < 0.2
    scenario = replace(scenario, script=script, faults=_on_devices(scenario.faults, chance, again_and_again))
    simulation = LostDevices(
        script,
        scenario.policy,
        devices=script.world_size + chance.choice((0, 0, 1, 1, 2, 3)),
        meanings=(Afterwards.UNKNOWN,) if again_and_again else _MEANINGS,
        chance=scenario.chance(),
        faults=scenario.faults,
        weather=scenario.weather,
    )
    call = f"understudy_testkit.simulator.device_losses.play_with_lost_devices({seed})"
    return run_to_the_end(seed, simulation, call, scenario)
