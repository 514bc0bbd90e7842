"""Which device each process of a host has."""

import pytest
from tests.protocol.test_job_stories import holding, lost, m, prepared, reported, resumed

from understudy.foundation.ids import Generation, HostId, Rank
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    AssignRank,
    Command,
    DecisionKind,
    RecordDecision,
    StartMember,
)
from understudy.protocol.devices import DeviceUse, device_for_rank, device_for_spare
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.requests import MoveRanks
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage
from understudy.protocol.takeover import facts_of, take_over

WORLD = 2


def job(devices: int, spares: int, world: int = WORLD) -> tuple[JobMachine, tuple[Command, ...]]:
    """A world in training, and what it began with."""
    machine = JobMachine(Policy(world_size=world, spares=spares))
    begun = machine.handle(ev.JobStarted(at=0.0, devices=devices))
    for number in range(world + spares):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
    for number in range(world, world + spares):
        machine.handle(ev.MemberParked(at=1.5, member=m(number)))
    for number in range(world):
        machine.handle(ev.MemberEstablished(at=2.0, member=m(number), generation=Generation(1), twin_key="all"))
    assert machine.stage is Stage.TRAINING
    return machine, begun


def devices_of(commands: tuple[Command, ...]) -> dict[str, int | None]:
    return {each.member: each.device for each in commands if isinstance(each, StartMember | AssignRank)}


def said(commands: tuple[Command, ...]) -> list[str]:
    notes = (each for each in commands if isinstance(each, RecordDecision) and each.kind is DecisionKind.DEVICE)
    return [sentence(note.reason) for note in notes]


def recover(machine: JobMachine, survivor: int, joiner: int) -> tuple[Command, ...]:
    """Generation 2 is formed."""
    machine.handle(reported(survivor, 2, holding(5)))
    machine.handle(prepared(joiner, 2))
    machine.handle(resumed(survivor, 2))
    return machine.handle(resumed(joiner, 2))


# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "ranks", "given"),
    [
        (4, 2, [2, 3, 0, 1, 0, 1]),  # spare devices first; then every device has one spare before one has two
        (2, 2, [0, 1, 0]),
        (3, 2, [2, 0, 1, 0]),
        (1, 1, [0, 0]),
    ],
)
def test_spare_devices_come_first_and_shadows_are_spread_evenly(devices: int, ranks: int, given: list[int]) -> None:
    spares: list[int] = []
    for _ in given:
        device = device_for_spare(DeviceUse(range(devices), range(ranks), tuple(spares)))
        assert device is not None
        spares.append(device)
    assert spares == given


def test_no_spare_goes_to_a_device_that_was_lost() -> None:
    assert device_for_spare(DeviceUse([1], {1}, (1, 1))) == 1
    assert device_for_spare(DeviceUse([], set())) is None


@pytest.mark.parametrize(
    ("wanted", "given"),
    [((2, 0, 1), 2), ((1, 3, 0), 3), ((1, None, 1), 2), ((None, None, None), 2)],
    ids=["its own", "its own has a rank", "all of them have", "none is wanted"],
)
def test_a_rank_has_a_device_of_its_own(wanted: tuple[int | None, ...], given: int) -> None:
    assert device_for_rank(DeviceUse([1, 2, 3], {0, 1}), wanted) == given


def test_a_rank_without_any_device_has_none() -> None:
    assert device_for_rank(DeviceUse([0, 1], {0, 1}), (0, 1)) is None


# -- in a job ---------------------------------------------------------------------------------------------------------


def test_a_host_that_tells_of_no_devices_is_as_ever() -> None:
    machine, begun = job(devices=0, spares=1)
    assert set(devices_of(begun).values()) == {None} and said(begun) == []
    joined = machine.handle(lost(1))
    assert set(devices_of(joined).values()) == {None}
    assert said(recover(machine, survivor=0, joiner=2)) == []


def test_ranks_that_share_devices_are_left_alone() -> None:
    """More ranks than devices: their script has a way of its own."""
    _, begun = job(devices=1, spares=1)
    assert set(devices_of(begun).values()) == {None}


def test_ranks_have_the_device_of_their_place_and_spares_are_told_of() -> None:
    _, begun = job(devices=3, spares=2)
    assert devices_of(begun) == {"m-0": 0, "m-1": 1, "m-2": 2, "m-3": 0}
    first, second = said(begun)
    assert first == "spare m-2 has device 2 of this host, which no rank has, and keeps it"
    assert second.startswith("spare m-3 is a shadow on device 0 of this host")


def test_a_spare_keeps_its_device_with_whatever_rank_and_that_is_told_when_the_world_has_resumed() -> None:
    machine, _ = job(devices=3, spares=1)
    (assign,) = [each for each in machine.handle(lost(1)) if isinstance(each, AssignRank)]
    assert (assign.member, assign.rank, assign.slot, assign.device) == (m(2), 1, 1, 2)
    told = recover(machine, survivor=0, joiner=2)
    assert said(told) == [
        "rank 1 on device 2 of this host, before on device 1 of this host; sums may differ in the last bit on another "
        "device"
    ]
    refilled = machine.handle(ev.Tick(at=20.0))
    assert devices_of(refilled) == {"m-3": 1}, "the device that the lost process had is a spare device now"


def test_a_shadow_takes_the_device_of_the_rank_that_it_replaces() -> None:
    machine, begun = job(devices=2, spares=1)
    assert devices_of(begun)["m-2"] == 0
    assert devices_of(machine.handle(lost(1))) == {"m-2": 1}
    assert said(recover(machine, survivor=0, joiner=2)) == [], "the device is the same"
    assert devices_of(machine.handle(ev.Tick(at=20.0))) == {"m-3": 0}


def test_the_shadow_of_the_very_device_is_liked_best() -> None:
    machine, begun = job(devices=3, spares=3)
    assert devices_of(begun) == {"m-0": 0, "m-1": 1, "m-2": 2, "m-3": 0, "m-4": 1}
    assert devices_of(machine.handle(lost(1))) == {"m-4": 1}


def test_a_process_that_is_started_for_a_rank_is_told_its_device_at_its_birth() -> None:
    machine, _ = job(devices=3, spares=1, world=3)
    machine.handle(lost(1))  # the spare takes it
    (start,) = [each for each in machine.handle(lost(2)) if isinstance(each, StartMember)]
    assert start.device == 2 and start.seat is not None and start.seat.local_rank == 2


def test_a_rank_that_moves_goes_to_a_spare_device_or_to_its_own() -> None:
    machine, _ = job(devices=2, spares=1)
    commands = machine.handle(MoveRanks(at=5.0, reason="asked for", ranks=(Rank(1),)))
    assert devices_of(commands) == {"m-2": 1}, "the leaver's: it will be free"
    machine, _ = job(devices=3, spares=1)
    commands = machine.handle(MoveRanks(at=5.0, reason="asked for", ranks=(Rank(1),)))
    assert devices_of(commands) == {"m-2": 2}


def test_a_host_that_joins_later_tells_of_its_devices_too() -> None:
    machine = JobMachine(Policy(world_size=2, hosts=1))
    machine.handle(ev.HostJoined(at=0.0, host=HostId("a"), ranks=2, spares=0, devices=2))
    machine.handle(ev.HostJoined(at=0.0, host=HostId("b"), ranks=0, spares=2, devices=2))
    assert machine.hosts.by_id[HostId("b")].devices == 2
    machine.handle(ev.MemberConnected(at=1.0, member=m(2)))
    for number in range(2):
        machine.handle(ev.MemberConnected(at=1.0, member=m(number)))
        machine.handle(ev.MemberEstablished(at=2.0, member=m(number), generation=Generation(1), twin_key="all"))
    assert len(devices_of(machine.handle(ev.Tick(at=20.0)))) == 2


def test_a_successor_knows_all_devices() -> None:
    machine, _ = job(devices=3, spares=2)
    machine, _ = take_over(machine.policy, facts_of(machine, 5.0), 0.0)
    roster = machine.roster
    assert {id_: roster.device_of(member) for id_, member in roster.members.items()} == {
        "m-0": 0,
        "m-1": 1,
        "m-2": 2,
        "m-3": 0,
    }
    assert machine.round.state.devices == {0: (THIS_HOST, 0), 1: (THIS_HOST, 1)}


def test_a_shadow_alone_does_not_make_room_for_another_rank() -> None:
    """Both devices have a rank: without a vacancy nothing can be taken."""
    machine, _ = job(devices=2, spares=1)
    assert machine.pool.cannot_fill(1, 5.0) is not None
    assert machine.pool.has_spare_for(Rank(0), 5.0)
    assert not machine.pool.is_empty_for_good(5.0)
