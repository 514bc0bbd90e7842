"""Every sample of an absent rank is worked on once, by ranks that have equally much to do."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol.sharing_out import Piece, SharingOut


@st.composite
def sharings(draw: st.DrawFn) -> SharingOut:
    """Replicas of one rank or of several, in any order, some of them absent."""
    replicas, shards = draw(st.integers(2, 40)), draw(st.integers(1, 4))
    lost = draw(st.sets(st.integers(0, replicas - 1), min_size=1, max_size=replicas - 1))
    numbers = draw(st.permutations(range(replicas * shards)))
    mesh = [numbers[place * shards : (place + 1) * shards] for place in range(replicas)]
    absent = sorted(number for place in lost for number in mesh[place])
    return SharingOut(replicas * shards, tuple(absent), tuple(zip(*mesh, strict=True)) if shards > 1 else ())


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
def test_ranks_of_one_replica_have_pieces_of_the_same_size(sharing: SharingOut, size: int) -> None:
    present = set(sharing.present())
    by_lane = [
        [[len(piece.samples(size)) for piece in sharing.pieces_of(share)] for share in lane if share in present]
        for lane in sharing.lanes
    ]
    assert all(sizes == by_lane[0] for sizes in by_lane)


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
        (SharingOut(6, (2, 3), ((0, 2, 4), (1, 3, 5))), 5, [(3, "1/2", "1")]),
    ],
)
def test_the_pictures(sharing: SharingOut, share: int, expected: list[tuple[int, str, str]]) -> None:
    pieces = tuple(Piece(other, Fraction(start), Fraction(stop)) for other, start, stop in expected)
    assert sharing.pieces_of(share) == pieces


def test_a_sum_over_samples_is_not_divided_by_their_number() -> None:
    sharing = SharingOut(4, (1,))
    assert sharing.weight(2, 6, "sum") == Fraction(3, 4)
    assert sharing.weight(0, 6, "sum") == 0
