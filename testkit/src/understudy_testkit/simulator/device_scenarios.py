"""From a seed to one whole run of ranks on devices: a scenario of one host. Devices complete what their hosts have
started after some time, and sometimes abort it by themselves.

Knows when devices run; what they do is in `device`. A host that is stopped does not stop its device.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from understudy.foundation.ids import MemberId, Rank
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.policy import Policy
from understudy_testkit.simulator.device import COLLECTIVE, DeviceMember
from understudy_testkit.simulator.device_side import FLAG, DeviceSideMember
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.network import Weather
from understudy_testkit.simulator.phases import Meeting, MemberPhase
from understudy_testkit.simulator.scenarios import Report, draw_scenario, run_to_the_end
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.simulation import Simulation

_RUNS = (0.0, 0.08)  # seconds until a device has completed what it could complete
_DIES_AFTER = (0.0, 0.6)  # seconds from the error of a device to the end of its process
_SURVIVES = 0.25  # the share of processes that live on after such an error
_ON_DEVICES = frozenset({MemberPhase.COLLECTIVE.value, FLAG})
_UNRELIABLE = (0.0, 0.0, 0.2, 0.5)  # the share of faults that strike the device


class DeviceSimulation(Simulation):
    def __init__(
        self, script: Script, policy: Policy, *, chance: Random, faults: tuple[Fault, ...], weather: Weather
    ) -> None:
        super().__init__(script, policy, chance=chance, faults=faults, weather=weather)
        self._running: set[MemberId] = set()
        self.garbage = 0  # collectives that a device completed with garbage and without an error

    def _follow(self, member: SimulatedMember, before: int) -> None:
        super()._follow(member, before)
        self._start(member)
        if member.ticket != before and isinstance(member, DeviceSideMember):
            self._go_on_if_known(member)

    def arrive(self, member: SimulatedMember, meeting: Meeting) -> None:
        super().arrive(member, meeting)
        if meeting[1] in _ON_DEVICES and self.is_complete(meeting):
            self._start_all()

    def contaminate(self, member: SimulatedMember, collective: Meeting) -> None:
        super().contaminate(member, collective)
        if self.script.ahead:
            self._start_all()

    def _start_all(self) -> None:
        for other in self.members.values():
            self._start(other)

    def _go_on_if_known(self, member: DeviceMember) -> None:
        """Its host waits for its device, and that has done enough."""
        if member.waits_for_device and member.can_move(self):
            self._schedule(member)

    def _start(self, member: SimulatedMember) -> None:
        """Its device completes something after a while, if there is anything that it can complete."""
        if not isinstance(member, DeviceMember) or member.id in self._running or not member.device_can_run(self):
            return
        self._running.add(member.id)
        low, high = _RUNS
        self.later(low + (high - low) * self.chance.random(), self._run_device, member)

    def _run_device(self, member: DeviceMember) -> None:
        self._running.discard(member.id)
        if not member.alive or not member.device_can_run(self):
            return
        kind = member.queue[0][0]
        member.run_device(self)
        self.garbage += kind == COLLECTIVE and member.garbage and not member.aborted
        self._go_on_if_known(member)
        self._start(member)

    def _hit(self, fault: Fault, member: SimulatedMember, ticket: int) -> None:
        if fault.kind is not FaultKind.DEVICE:
            super()._hit(fault, member, ticket)
            return
        if not isinstance(member, DeviceMember) or not member.alive or not member.can_fail:
            return
        self.story.append(f"fault: the device of {member.id} (rank {member.rank}) aborts, {member.phase.value}")
        self.fired["device"] += 1
        member.fail(self)
        self._start(member)
        if self.chance.random() >= _SURVIVES:
            self.later(self.chance.uniform(*_DIES_AFTER), self._die_of_it, member)

    def _die_of_it(self, member: DeviceMember) -> None:
        self.end(member, Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9, step=member.holds))


def _on_device(fault: Fault, chance: Random, world_size: int, steps: int, share: float) -> Fault:
    if chance.random() >= share:
        return fault
    return Fault(
        kind=FaultKind.DEVICE,
        moment=Moment.COLLECTIVE,
        rank=Rank(chance.randrange(world_size)),
        step=chance.randrange(1, steps),
    )


def _varied(script: Script, chance: Random) -> Script:
    """Some worlds have no twins but copies in peer memory, some go on without a replica, compare twins, or evaluate."""
    script = replace(script, devices=True, steps=chance.randint(3, 8))
    match chance.randrange(6):
        case 0 if script.world_size <= 16:
            every = chance.choice((1, 1, 2, 3))
            return replace(script, fenced=True, shards=script.world_size, crossed=False, peer_snapshot_every=every)
        case 1:
            return replace(script, replaceable=True, crossed=False)
        case 2:
            return replace(script, check_replicas_every=chance.randint(1, 3))
        case 3:
            return replace(script, tail_every=chance.randint(1, 3), tail_length=chance.randint(1, 2))
    return script


def _deciding(script: Script, chance: Random) -> Script:
    """A world of twins whose devices decide at the fence. Some compare twins, or evaluate, which needs the state."""
    script = replace(script, devices=True, fenced=False, shards=1, crossed=False, ahead=1, steps=chance.randint(3, 8))
    match chance.randrange(6):
        case 0:
            return replace(script, check_replicas_every=chance.randint(1, 3))
        case 1:
            return replace(script, tail_every=chance.randint(1, 3), tail_length=chance.randint(1, 2))
        case 2:
            return replace(script, ahead=2)
    return script


def play_on_devices(seed: int) -> Report:
    """Run one seed. A violation carries the seed, the scenario and the story."""
    return _play(seed, Random(f"devices {seed}"), _varied, "play_on_devices")


def play_with_device_side_fence(seed: int) -> Report:
    """The same where devices decide."""
    return _play(seed, Random(f"device-side fence {seed}"), _deciding, "play_with_device_side_fence")


def _play(seed: int, chance: Random, vary: Callable[[Script, Random], Script], name: str) -> Report:
    scenario = draw_scenario(seed)
    script = vary(scenario.script, chance)
    policy = replace(scenario.policy, spares=0 if script.replaceable else scenario.policy.spares)
    share = chance.choice(_UNRELIABLE)
    faults = tuple(_on_device(fault, chance, script.world_size, script.steps, share) for fault in scenario.faults)
    scenario = replace(scenario, script=script, policy=policy, faults=faults)
    simulation = DeviceSimulation(script, policy, chance=scenario.chance(), faults=faults, weather=scenario.weather)
    call = f"understudy_testkit.simulator.device_scenarios.{name}({seed})"
    report = run_to_the_end(seed, simulation, call, scenario)
    if simulation.garbage:
        report.fired["contagion"] = simulation.garbage
    return report
