"""Rules of the device-side fence with a bug, to show that the exploration would find it. Each is replaced as
`seeded_bugs` does it. Nothing else uses them."""

from understudy_testkit.simulator.device_side import DeviceSideMember, Nonce
from understudy_testkit.simulator.explorer import explore
from understudy_testkit.simulator.phases import Surroundings
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.seeded_bugs import SeededBug

_guard = DeviceSideMember._guard


def explore_device_side(_seed: int) -> object:
    return explore(Script(world_size=2, steps=2, fenced=False, devices=True, ahead=1), faults=1)


def explore_three_steps(_seed: int) -> object:
    return explore(Script(world_size=2, steps=3, fenced=False, devices=True, ahead=1), faults=1)


def explore_two_faults(_seed: int) -> object:
    return explore(Script(world_size=2, steps=2, fenced=False, devices=True, ahead=1), faults=2)


def _own_word_only(member: DeviceSideMember, step: int, _world: Surroundings) -> bool:
    return not member._poisoned(step)


def _the_same_in_every_step(member: DeviceSideMember, _step: int) -> Nonce:
    return member.acting, 0


def _the_same_in_every_generation(_member: DeviceSideMember, step: int) -> Nonce:
    return 0, step


def _not_at_all(_member: DeviceSideMember, _step: int) -> bool:
    return False


def _own_communicator_only(member: DeviceSideMember, _step: int) -> bool:
    return member.flags_aborted


def _some_are_enough(member: DeviceSideMember, step: int, world: Surroundings) -> bool:
    """No expected value: whoever gets something that is not nothing takes it for good."""
    return not member.flags_aborted and world.is_complete(member._flag(step))


def _reports_at_once(member: DeviceSideMember, world: Surroundings) -> None:
    member._abort_flags(world)
    member._run_all(world)
    member.unread, member.results = (), ()


def _records_at_once(member: DeviceSideMember, world: Surroundings) -> None:
    _guard(member, world)
    if member.unread:
        world.on_committed(member)


DEVICE_SIDE_BUGS = (
    SeededBug(
        "device-side fence: each rank asks its own word, and not the others",
        DeviceSideMember,
        "_flag_is_good",
        _own_word_only,
        explore_device_side,
        1,
    ),
    SeededBug(
        "device-side fence: a sum of some ranks is good enough",
        DeviceSideMember,
        "_flag_is_good",
        _some_are_enough,
        explore_device_side,
        1,
    ),
    SeededBug(
        "device-side fence: the word is not looked at",
        DeviceSideMember,
        "_poisoned",
        _not_at_all,
        explore_device_side,
        1,
    ),
    SeededBug(
        "device-side fence: only a broken communicator of the flags is looked at",
        DeviceSideMember,
        "_poisoned",
        _own_communicator_only,
        explore_device_side,
        1,
    ),
    SeededBug(
        "device-side fence: the nonce is the same in every step",
        DeviceSideMember,
        "_nonce",
        _the_same_in_every_step,
        explore_three_steps,
        1,
    ),
    SeededBug(
        "device-side fence: the nonce of an older generation counts",
        DeviceSideMember,
        "_nonce",
        _the_same_in_every_generation,
        explore_two_faults,
        1,
    ),
    SeededBug(
        "device-side fence: a rank reports before it has read its flags",
        DeviceSideMember,
        "_drain",
        _reports_at_once,
        explore_device_side,
        1,
    ),
    SeededBug(
        "device-side fence: a step is recorded before its flag is known",
        DeviceSideMember,
        "_guard",
        _records_at_once,
        explore_device_side,
        1,
    ),
)
