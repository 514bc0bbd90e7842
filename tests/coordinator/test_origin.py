"""An insider: a host with a valid token and certificate says things about others. None of it has an effect."""

import msgspec
import pytest
from tests.coordinator.leader_play import Cluster, Host, change_leaders, play

from understudy.errors import WireError
from understudy.foundation.ids import Generation, MemberId, Rank
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.wire import host_messages as wire

GARBAGE = wire.Bequeathed(member="m-1", content=b"garbage", rank=1, world=1, again=True)


def left_by(cluster: Cluster, rank: int) -> bytes:
    assert cluster.leader.coordinator is not None
    return cluster.leader.coordinator._bequests[Rank(rank)][1]


@pytest.mark.parametrize(
    "lie",
    [
        GARBAGE,
        msgspec.structs.replace(GARBAGE, member="m-0"),
        msgspec.structs.replace(GARBAGE, member="m-99"),
        msgspec.structs.replace(GARBAGE, seal=b"0" * 32),
        msgspec.structs.replace(GARBAGE, member="m-0", rank=1, again=False),
        msgspec.structs.replace(GARBAGE, member="m-0", rank=0, world=10**12),
    ],
    ids=["of another's member", "of an own member", "of nobody", "with a seal", "not again", "of a later world"],
)
def test_nobody_says_what_another_host_leaves(lie: wire.Bequeathed) -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.a.line is not None
        leader.heard(cluster.a.line, lie)
        assert (left_by(cluster, 0), left_by(cluster, 1)) == (b"left by m-0", b"left by m-1")
        assert leader.lines.dropped["bequest of another"] == 1

    play(scene)


def test_memory_does_not_grow_with_ranks_that_do_not_exist() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        assert cluster.a.line is not None and leader.coordinator is not None
        for rank in range(1000, 1150):
            leader.heard(cluster.a.line, msgspec.structs.replace(GARBAGE, rank=rank, again=rank % 2 == 0, member="m-0"))
        assert set(leader.coordinator._bequests) == {0, 1}

    play(scene)


def test_a_copy_comes_back_from_who_kept_it_and_only_unchanged() -> None:
    """The coordinator and the host of a rank are lost together; another host kept what it left."""

    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.attend()
        assert cluster.b.line is not None
        cluster.leader.heard(cluster.b.line, cluster.bequest("m-1"))
        await cluster.settle()
        (copy,) = cluster.spare.copies()
        leader = await change_leaders(cluster)
        await cluster.attend(cluster.a, cluster.spare)
        assert cluster.spare.line is not None
        changed = msgspec.structs.replace(copy, again=True, content=b"garbage")
        leader.heard(cluster.spare.line, changed)
        leader.heard(cluster.spare.line, msgspec.structs.replace(copy, again=True, rank=0))
        assert leader.coordinator is not None and not leader.coordinator._bequests
        leader.heard(cluster.spare.line, msgspec.structs.replace(copy, again=True))
        assert left_by(cluster, 1) == b"left by m-1"

    play(scene)


@pytest.mark.parametrize("pace", [5e-324, 1e300, -1.0, float("nan"), float("inf")])
def test_a_pace_that_cannot_be_is_refused(pace: float) -> None:
    with pytest.raises(WireError, match="not a pace"):
        wire.to_event(wire.from_event(ev.PaceLearnt(at=0.0, pace=pace)), 1.0)


def test_texts_of_a_host_cannot_steer_a_terminal() -> None:
    cause = Cause(kind=CauseKind.EXIT, detail="two\nlines \x1b[2J \u202e", exit_code=1)
    event = wire.to_event(wire.from_event(ev.MemberLost(at=0.0, member=MemberId("m-0"), cause=cause)), 1.0)
    assert isinstance(event, ev.MemberLost) and event.cause.detail == "two\nlines ?[2J ?"


def test_a_spare_cannot_say_that_the_world_has_lost_contact() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        lost = ev.ContactLost(at=0.0, member=MemberId("m-2"), generation=Generation(1), why="so it says")
        await cluster.say(cluster.spare, lost)
        cluster.clock.advance_to(cluster.clock.now() + 60.0)
        leader._tick()
        assert leader.coordinator is not None and leader.coordinator.machine.generation == 1

    play(scene)


def test_a_generation_that_does_not_exist_is_dropped() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        finished = ev.MemberFinished(at=0.0, member=MemberId("m-0"), generation=Generation(10**15))
        await cluster.say(cluster.a, finished)
        assert leader.lines.dropped["later generation"] == 1
        assert leader.coordinator is not None and not leader.coordinator.machine.ending.left

    play(scene)


def test_the_same_member_is_not_claimed_by_two_hosts() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        thief = Host("c", ranks=0, spares=1, living=["m-1"])
        leader.welcome(thief.greeting())
        with pytest.raises(WireError, match="lives elsewhere"):
            leader.attended(thief.greeting())

    play(scene)
