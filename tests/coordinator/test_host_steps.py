"""What the whole job has committed, worked out from what hosts tell; the machine hears nothing of it."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.coordinator.acting import Play
from tests.coordinator.leader_play import Cluster, Host

from understudy.coordinator.steps import Committed, HostSteps
from understudy.errors import WireError
from understudy.foundation.clock import SetClock
from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.protocol import events as ev
from understudy.wire import host_messages as wire


def steps_of(cluster: Cluster) -> HostSteps:
    assert cluster.leader.coordinator is not None
    return cluster.leader.coordinator.steps


def committed(cluster: Cluster) -> Committed:
    assert cluster.leader.coordinator is not None
    return steps_of(cluster).committed(cluster.leader.coordinator.machine)


def advance(cluster: Cluster, host: Host, smallest: int, largest: int | None = None) -> None:
    assert host.line is not None
    largest = smallest if largest is None else largest
    cluster.leader.heard(host.line, wire.Advanced(smallest=smallest, largest=largest))


def play(scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def act() -> None:
        cluster = Cluster()
        await cluster.lead()
        await cluster.train()
        await scene(cluster)

    asyncio.run(act())


def test_the_smallest_step_of_all_hosts_counts_once_all_have_told_theirs() -> None:
    async def scene(cluster: Cluster) -> None:
        assert committed(cluster) == Committed(None, None)
        advance(cluster, cluster.a, 8, 9)
        assert committed(cluster).step is None
        advance(cluster, cluster.b, 7, 8)
        assert committed(cluster) == Committed(7, 0.0)
        advance(cluster, cluster.spare, 3)  # it holds no rank
        assert committed(cluster).step == 7

    play(scene)


def test_how_long_it_stands_still() -> None:
    async def scene(cluster: Cluster) -> None:
        for host in (cluster.a, cluster.b):
            advance(cluster, host, 7)
        cluster.clock.advance_to(cluster.clock.now() + 60.0)
        advance(cluster, cluster.a, 7, 8)
        assert committed(cluster) == Committed(7, 60.0)
        advance(cluster, cluster.a, 8)
        assert committed(cluster) == Committed(7, 60.0)
        advance(cluster, cluster.b, 8)
        assert committed(cluster) == Committed(8, 0.0)

    play(scene)


def test_never_less_than_what_a_recovery_established() -> None:
    """On one host, where the same is told in the same way."""
    stage = Play()
    stage.begin()
    coordinator = stage.coordinator
    coordinator.advanced(3, 3)
    assert coordinator.steps.committed(coordinator.machine).step == 3
    stage.lose("m-1", 5.0)
    stage.prepare("m-2", 6.0, 2)
    stage.report("m-0", 6.0, 2, 7)
    assert coordinator.steps.committed(coordinator.machine).step == 7
    for name in ("m-0", "m-2"):
        stage.resume(name, 7.0, 2)
    assert coordinator.steps.committed(coordinator.machine).step == 7
    coordinator.advanced(9, 9)
    assert coordinator.steps.committed(coordinator.machine).step == 9


def test_a_second_loss_does_not_take_back_what_the_recovery_before_it_established() -> None:
    """The spare's host has had a rank since the recovery, and not spoken since: what it told before is old."""

    async def scene(cluster: Cluster) -> None:
        for host, step in ((cluster.spare, 2), (cluster.a, 7), (cluster.b, 7)):
            advance(cluster, host, step)
        await cluster.recover_rank_1()
        assert committed(cluster).step == 7 and steps_of(cluster).of(HostId("spare")) == 7
        await cluster.lose(cluster.a, "m-0")
        assert committed(cluster).step == 7

    play(scene)


def test_what_was_told_before_the_world_went_back_is_void() -> None:
    clock = SetClock(10.0)
    steps = HostSteps(clock)
    steps.told(HostId("a"), 9, 9)
    for _ in range(2):  # whoever has not heard it is told again
        steps.resumes(Generation(2), 4)
        assert steps.of(HostId("a")) == 4
    steps.told(HostId("a"), 6, 6)
    steps.resumes(Generation(2), 4)
    assert steps.of(HostId("a")) == 6


def test_the_last_step_stays_when_all_ranks_have_left() -> None:
    stage = Play()
    stage.begin()
    coordinator = stage.coordinator
    coordinator.advanced(99, 100)
    for name in ("m-0", "m-1"):
        coordinator.handle(ev.MemberFinished(at=5.0, member=MemberId(name), generation=Generation(1)))
    for name in ("m-0", "m-1"):
        stage.lose(name, 6.0, code=0)
    assert coordinator.machine.stopped is not None
    assert coordinator.steps.committed(coordinator.machine).step == 99


def test_ranks_that_are_absent_hold_nobody_up() -> None:
    async def scene(cluster: Cluster) -> None:
        advance(cluster, cluster.a, 50)
        advance(cluster, cluster.b, 20)
        assert cluster.leader.coordinator is not None
        cluster.leader.coordinator.machine.round.state.absent = frozenset({Rank(1)})
        assert committed(cluster).step == 50

    play(scene)


def test_the_machine_hears_nothing_and_nothing_is_kept_of_old_reports() -> None:
    async def scene(cluster: Cluster) -> None:
        assert cluster.leader.coordinator is not None
        records = len(cluster.journal.records)
        cluster.leader.coordinator.machine.handle = None  # type: ignore[method-assign, assignment]
        for step in range(1000):
            advance(cluster, cluster.a, step)
        assert list(steps_of(cluster).by_host) == [HostId("a")] and len(cluster.journal.records) == records

    play(scene)


@pytest.mark.parametrize("steps", [(-1, 3), (2**53, 2**53), (4, 3), ("1", 2), (1.5, 2), (True, 2), (1,)])
def test_what_is_no_step_is_refused(steps: tuple[object, ...]) -> None:
    told = {"type": "Advanced", **dict(zip(("smallest", "largest"), steps, strict=False))}
    with pytest.raises(WireError):
        wire.decode_from_host(msgspec.msgpack.encode(told))


def test_a_host_cannot_name_another_one() -> None:
    told = {"type": "Advanced", "smallest": 1, "largest": 2, "host": "b"}
    assert wire.decode_from_host(msgspec.msgpack.encode(told)) == wire.Advanced(smallest=1, largest=2)
    assert wire.decode_from_host(wire.encode(wire.Advanced(smallest=1, largest=2**53 - 1)))
