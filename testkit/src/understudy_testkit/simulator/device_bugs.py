"""Rules of ranks on devices with a bug, to show that the exploration would find it. Each is replaced as `seeded_bugs`
does it. Nothing else uses them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from understudy.foundation.ids import Rank
from understudy.protocol import commit, device_loss, devices, planning
from understudy.protocol.commit import Verdict
from understudy.protocol.hosts import Host
from understudy.protocol.positions import Position
from understudy.protocol.stages import Stage
from understudy.protocol.watchdog import Watchdog
from understudy_testkit.simulator.device import DeviceMember
from understudy_testkit.simulator.device_losses import play_with_lost_devices
from understudy_testkit.simulator.explorer import explore
from understudy_testkit.simulator.phases import MemberPhase, Surroundings
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.seeded_bugs import SeededBug

_judge = commit.judge
_generation_in_use = Watchdog._generation_in_use


def explore_devices(_seed: int) -> object:
    return explore(Script(world_size=2, steps=2, fenced=False, devices=True), faults=1)


def as_on_synchronous_devices(positions: Mapping[Rank, Position]) -> Verdict | None:
    """All survivors have arrived: commit. But a lost rank may have aborted first."""
    return _judge({rank: replace(position, arrived=position.at_fence) for rank, position in positions.items()})


def explore_a_move(_seed: int) -> object:
    return explore(Script(world_size=2, steps=2, fenced=False, devices=True), faults=1, moves=1)


def _none_that_is_left_at_a_boundary(watchdog: Watchdog) -> int | None:
    stopping = watchdog.round.state.stage is Stage.STOPPING
    return None if stopping else _generation_in_use(watchdog)


def _only_where_shards_differ(script: Script) -> bool:
    return script.fenced


def _at_once(_member: DeviceMember) -> bool:
    return True


def _arrives_and_looks_then(member: DeviceMember, world: Surroundings) -> None:
    clean = member._flags_are_clean()
    member._arrive(world)
    if not clean and member.phase is MemberPhase.FENCE:
        member._lose_contact(world)


def _word_of_the_coordinator_only(member: DeviceMember) -> bool:
    return member.heard <= member.acting


def _not_at_all(*_: object) -> None:
    return None


DEVICE_BUGS = (
    SeededBug(
        "devices: the commit rule of synchronous ranks",
        planning,
        "judge",
        as_on_synchronous_devices,
        explore_devices,
        1,
    ),
    SeededBug(
        "devices: worlds of twins are not fenced",
        Script,
        "waits_at_fence",
        property(_only_where_shards_differ),
        explore_devices,
        1,
    ),
    SeededBug(
        "devices: a rank arrives when its host does",
        DeviceMember,
        "_event_is_complete",
        _at_once,
        explore_devices,
        1,
    ),
    SeededBug(
        "devices: a rank arrives before it looks at its flags",
        DeviceMember,
        "_after_event",
        _arrives_and_looks_then,
        explore_devices,
        1,
    ),
    SeededBug(
        "devices: errors that a device has found are not looked at",
        DeviceMember,
        "_flags_are_clean",
        _word_of_the_coordinator_only,
        explore_devices,
        1,
    ),
    SeededBug(
        "devices: a rank reports before its device has come to rest",
        DeviceMember,
        "_drain",
        _not_at_all,
        explore_devices,
        1,
    ),
    SeededBug(
        "devices: whoever loses contact before a boundary is waited for",
        Watchdog,
        "_generation_in_use",
        _none_that_is_left_at_a_boundary,
        explore_a_move,
        1,
    ),
)


def _all_devices(host: Host) -> list[int]:
    return list(range(host.devices))


def _its_own_or_that_of_its_rank(use: devices.DeviceUse, wanted: Sequence[int | None]) -> int | None:
    return next((device for device in wanted if device in use.well), use.well[0])


BUGS_OF_LOST_DEVICES = (
    SeededBug("a lost device is used again", Host, "well_devices", property(_all_devices), play_with_lost_devices, 40),
    SeededBug(
        "two ranks share a device", devices, "device_for_rank", _its_own_or_that_of_its_rank, play_with_lost_devices, 40
    ),
    SeededBug(
        "a device that fails again and again is never given up",
        device_loss,
        "_MOST_UNKNOWN",
        1_000_000,
        play_with_lost_devices,
        40,
    ),
)
