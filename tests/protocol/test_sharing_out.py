"""Every sample of an absent rank is worked on once, by ranks that have equally much to do."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.foundation.ids import Rank
from understudy.protocol.sharing_out import CannotShareOut, Piece, SharingOut, share_out, whole_replicas


@st.composite
def sharings(draw: st.DrawFn, mesh: bool = False) -> SharingOut:
    """Replicas of one rank or of several, some of them absent, numbered in any way or as in a `mesh`."""
    replicas, shards = draw(st.integers(2, 40)), draw(st.integers(1, 4))
    lost = draw(st.sets(st.integers(0, replicas - 1), min_size=1, max_size=replicas - 1))
    numbers = range(replicas * shards) if mesh or shards == 1 else draw(st.permutations(range(replicas * shards)))
    world = {Rank(number): place for place, number in enumerate(numbers)}
    keys = {rank: str(place % shards) for rank, place in world.items()}
    absent = {rank for rank, place in world.items() if place // shards in lost}
    sharing = share_out(own_shares(replicas * shards), absent, keys)
    assert isinstance(sharing, SharingOut) and len(sharing.lanes) == (shards if shards > 1 else 0)
    return sharing


def loads(sharing: SharingOut, size: int) -> dict[int, list[tuple[int, range]]]:
    return {
        share: [(piece.share, piece.samples(size)) for piece in sharing.pieces_of(share)] for share in sharing.present()
    }


@given(sharings(), st.integers(1, 50))
def test_every_sample_once(sharing: SharingOut, size: int) -> None:
    seen = Counter(
        (share, sample) for taken in loads(sharing, size).values() for share, samples in taken for sample in samples
    )
    assert seen == Counter((share, sample) for share in sharing.absent for sample in range(size))


@given(sharings(), st.integers(1, 50))
def test_nobody_has_more_than_one_sample_more_than_another(sharing: SharingOut, size: int) -> None:
    totals = [sum(len(samples) for _, samples in taken) for taken in loads(sharing, size).values()]
    assert max(totals) - min(totals) <= 1


@given(sharings(), st.integers(1, 50))
def test_everybody_has_equally_many_parts_and_none_is_larger_than_a_batch(sharing: SharingOut, size: int) -> None:
    taken = list(loads(sharing, size).values())
    assert len({len(pieces) for pieces in taken}) == 1
    assert all(len(samples) <= size for pieces in taken for _, samples in pieces)
    few = -(-len(sharing.absent) // len(sharing.present()))
    assert len(taken[0]) <= few + 1


@given(sharings(mesh=True), st.integers(1, 50))
def test_ranks_of_one_replica_have_pieces_of_the_same_size(sharing: SharingOut, size: int) -> None:
    present = set(sharing.present())
    by_lane = [
        [[len(piece.samples(size)) for piece in sharing.pieces_of(share)] for share in lane if share in present]
        for lane in sharing.lanes
    ]
    assert all(sizes == by_lane[0] for sizes in by_lane)


@given(sharings(), st.integers(1, 50))
def test_weights_make_the_mean_over_all_shares(sharing: SharingOut, size: int) -> None:
    """Every sample has the weight 1 / (shares * size) in the end, when the engine divides by those present."""
    present = len(sharing.present())
    assert sharing.own_weight / present == Fraction(1, sharing.shares)
    for pieces in loads(sharing, size).values():
        for _, samples in pieces:
            weight = sharing.weight(len(samples), size, "mean")
            assert weight == 0 if not samples else weight / len(samples) / present == Fraction(1, sharing.shares * size)


@pytest.mark.parametrize(
    ("sharing", "share", "expected"),
    [
        (SharingOut(4, (2,)), 1, [(2, "1/3", "2/3")]),
        (SharingOut(4, (2, 3)), 1, [(3, "0", "1")]),
        (SharingOut(5, (3, 4)), 1, [(3, "2/3", "1"), (4, "0", "1/3")]),
        (SharingOut(5, (3, 4)), 0, [(3, "0", "1/3"), (3, "1/3", "2/3")]),
        (SharingOut(4, (0, 1, 3)), 2, [(0, "0", "1"), (1, "0", "1"), (3, "0", "1")]),
    ],
)
def test_the_pictures(sharing: SharingOut, share: int, expected: list[tuple[int, str, str]]) -> None:
    pieces = tuple(Piece(other, Fraction(start), Fraction(stop)) for other, start, stop in expected)
    assert sharing.pieces_of(share) == pieces


def test_a_sum_over_samples_is_not_divided_by_their_number() -> None:
    sharing = SharingOut(4, (1,))
    assert sharing.weight(2, 6, "sum") == Fraction(3, 4)
    assert sharing.weight(0, 6, "sum") == 0


def own_shares(ranks: int) -> dict[Rank, tuple[int, int]]:
    return {Rank(rank): (rank, ranks) for rank in range(ranks)}


def ranks(*numbers: int) -> frozenset[Rank]:
    return frozenset(Rank(number) for number in numbers)


def test_shares_of_the_absent() -> None:
    assert share_out(own_shares(4), ranks(3, 1), {}) == SharingOut(4, (1, 3))
    halves = {Rank(rank): "ab"[rank % 2] for rank in range(6)}
    tensor_parallel = {Rank(rank): (rank // 2, 3) for rank in range(6)}
    assert share_out(tensor_parallel, ranks(2, 3), halves) == SharingOut(3, (1,))
    assert share_out(own_shares(6), ranks(2, 3), halves) == SharingOut(6, (2, 3), ((0, 2, 4), (1, 3, 5)))


def test_twins_that_have_not_lost_equally_many_share_with_everybody() -> None:
    halves = {Rank(rank): "ab"[rank % 2] for rank in range(6)}
    assert share_out(own_shares(6), ranks(2), halves) == SharingOut(6, (2,))
    assert share_out(own_shares(6), ranks(0, 2, 4), halves) == SharingOut(6, (0, 2, 4))
    assert share_out(own_shares(3), ranks(1), {Rank(0): "a", Rank(1): "a", Rank(2): "b"}) == SharingOut(3, (1,))


@pytest.mark.parametrize(
    ("shares", "absent", "reason"),
    [
        (own_shares(2), ranks(0, 1), "no rank would be left"),
        ({Rank(r): (r // 2, 2) for r in range(4)}, ranks(1), "rank 1 works on the same samples as rank 0"),
        ({Rank(0): (0, 2), Rank(1): (1, 3)}, ranks(1), "do not agree"),
        ({Rank(0): (0, 3), Rank(1): (1, 3)}, ranks(1), "no rank has share 2 of 3"),
    ],
)
def test_refusals(shares: dict[Rank, tuple[int, int]], absent: frozenset[Rank], reason: str) -> None:
    refused = share_out(shares, absent, {})
    assert isinstance(refused, CannotShareOut) and reason in refused.reason


def test_a_replica_goes_as_a_whole() -> None:
    world = ranks(*range(6))
    keys = {Rank(rank): "ab"[rank % 2] for rank in range(6)}  # three replicas of two shards
    groups = [world, ranks(0, 2, 4), ranks(1, 3, 5), ranks(0, 1), ranks(2, 3), ranks(4, 5)]
    assert whole_replicas(ranks(3), groups, keys) == ranks(2, 3)
    assert whole_replicas(ranks(0, 5), groups, keys) == ranks(0, 1, 4, 5)
    refused = whole_replicas(ranks(0, 2, 5), groups, keys)
    assert isinstance(refused, CannotShareOut) and "no replica is left whole" in refused.reason


def test_every_rank_of_plain_data_parallelism_is_a_replica() -> None:
    keys = dict.fromkeys(ranks(0, 1, 2), "a")
    assert whole_replicas(ranks(1), [ranks(0, 1, 2)], keys) == ranks(1)
    assert isinstance(whole_replicas(ranks(0, 1, 2), [ranks(0, 1, 2)], keys), CannotShareOut)


def test_without_replicas_nobody_can_be_spared() -> None:
    keys = {Rank(rank): str(rank) for rank in range(4)}
    assert isinstance(whole_replicas(ranks(1), [ranks(0, 1, 2, 3)], keys), CannotShareOut)
