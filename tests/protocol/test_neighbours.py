"""Who keeps whose copy: always somebody on another host; and plans in which a keeper gives."""

import pytest
from tests.protocol.test_peer_memory import at

from understudy.foundation.ids import HostId, Rank, StepNumber
from understudy.protocol.neighbours import cover, keeper_of, pairs_of
from understudy.protocol.planning import CheckpointsWanted, NoPlan, Plan, Situation, make_plan
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.protocol.rungs import Rung


def placed(*hosts: str) -> dict[Rank, HostId]:
    return {Rank(rank): HostId(host) for rank, host in enumerate(hosts)}


@pytest.mark.parametrize(
    ("hosts", "keepers"),
    [
        ("abc", [1, 2, 0]),
        ("aabbcc", [2, 2, 4, 4, 0, 0]),
        ("aab", [2, 2, 0]),
        ("abab", [1, 2, 3, 0]),
        ("aaa", [None, None, None]),
        ("a", [None]),
    ],
)
def test_the_next_rank_on_another_host_keeps_the_copy(hosts: str, keepers: list[int | None]) -> None:
    where = placed(*hosts)
    assert [keeper_of(rank, where) for rank in where] == keepers


def test_absent_ranks_keep_nothing() -> None:
    where = placed(*"abc")
    del where[Rank(1)]
    assert keeper_of(Rank(0), where) == 2


def test_both_sides_know_of_a_pair() -> None:
    where = placed(*"aabbcc")
    pairs = {pair for rank in where for pair in pairs_of(rank, where)}
    assert pairs == {(0, 2), (1, 2), (2, 4), (3, 4), (4, 0), (5, 0)}
    assert all(pair in pairs_of(pair[0], where) and pair in pairs_of(pair[1], where) for pair in pairs)
    assert pairs_of(Rank(0), placed(*"aa")) == ()


def test_what_is_covered_is_said() -> None:
    alone = [Rank(0), Rank(1)]
    assert cover(alone, placed(*"ab"), 1).code == Code.COVERED
    assert cover(alone, placed(*"aa"), 1).code == Code.COVERED_ON_OWN_HOST
    assert cover(alone, placed(*"ab"), 0).code == Code.NO_COVER


def keeps(position: Position, *kept: tuple[int, int]) -> Position:
    copies = tuple((Rank(rank), StepNumber(step)) for rank, step in kept)
    return Position(holds=position.holds, arrived=position.arrived, saved=position.saved, keeps=copies)


def plan_of(*positions: Position, twins: str | None = None) -> Plan | CheckpointsWanted | NoPlan:
    keys = twins or "abcdefgh"[: len(positions)]
    situation = Situation(
        positions={Rank(rank): position for rank, position in enumerate(positions)},
        leavers={},
        twin_keys={Rank(rank): key for rank, key in enumerate(keys)},
        holdings={key: frozenset({ord(key)}) for key in keys},
        donors_per_receiver=8,
    )
    return make_plan(situation)


def test_a_keeper_gives_to_a_joiner_on_another_host() -> None:
    plan = plan_of(at(6, 5, 6), at(None), keeps(at(6, 5, 6), (1, 5), (1, 6)))
    assert isinstance(plan, Plan) and (plan.step, plan.rewind, plan.rung) == (6, False, Rung.PEER_MEMORY)
    assert plan.donors == ((1, (2,)),) and plan.from_copies == (1,)
    assert because(Code.KEEPS_COPY, keeper=2, rank=1, step=6) in plan.reason.all()


def test_all_go_back_to_what_a_keeper_has() -> None:
    plan = plan_of(at(6, 5, 6), at(None), keeps(at(6, 5, 6), (1, 5)))
    assert isinstance(plan, Plan) and (plan.step, plan.rewind, plan.from_copies) == (5, True, (1,))
    assert because(Code.KEEPS_COPY, keeper=2, rank=1, step=None) in plan.reason.all()


def test_nobody_needs_a_keeper_who_has_a_copy_or_a_twin() -> None:
    own = plan_of(at(6, 6), at(None, 6), keeps(at(6, 6), (1, 6)))
    assert isinstance(own, Plan) and (own.donors, own.from_copies) == ((), ())
    twin = plan_of(at(None), keeps(at(6, 6), (0, 6)), twins="aa")
    assert isinstance(twin, Plan) and (twin.rung, twin.from_copies) == (Rung.SWAP, ())


def test_a_keeper_may_be_a_joiner_itself() -> None:
    """Both hosts of two ranks are there, both processes are new, and one of them is on another host than before."""
    plan = plan_of(at(4, 4), keeps(at(None, 4), (2, 4)), at(None))
    assert isinstance(plan, Plan) and plan.donors == ((2, (1,)),)


def test_a_twin_takes_from_who_was_served_from_a_copy() -> None:
    plan = plan_of(at(None), at(None), keeps(at(4, 4), (1, 4)), twins="aab")
    assert isinstance(plan, Plan) and plan.donors == ((1, (2,)), (0, (1,))) and plan.from_copies == (1,)


def test_keepers_share_the_work() -> None:
    both = ((0, 4), (1, 4))
    plan = plan_of(at(None), at(None), keeps(at(4, 4), *both), keeps(at(4, 4), *both))
    assert isinstance(plan, Plan) and plan.donors == ((0, (2,)), (1, (3,)))
