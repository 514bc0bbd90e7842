"""Who writes what: once each, nobody too much, and nothing that does not make up a tensor."""

import itertools

import pytest

from understudy.errors import CheckpointError
from understudy.state.checkpoint.folders import key_of
from understudy.state.checkpoint.plan import PICKLE, Box, Piece, Plan, divide


def piece(name: str, digest: str = "a", shape: tuple[int, ...] = (4, 4), box: Box | None = None) -> Piece:
    offsets, sizes = box or ((0,) * len(shape), shape)
    return Piece(("model", name), "float32", shape, offsets, sizes, 64, digest)


def plans(*pieces: list[Piece]) -> list[Plan]:
    return [
        Plan(format=1, step=7, attempt="", rank=rank, world_size=len(pieces), pieces=each)
        for rank, each in enumerate(pieces)
    ]


def written(*pieces: list[Piece]) -> list[list[str]]:
    """Per rank, the names of what it writes."""
    return [[key_of(path) for _, path in share.writes] for share in divide(plans(*pieces))]


def test_what_replicas_hold_is_written_once_and_by_turns() -> None:
    replica = [piece(name) for name in "wxyz"]
    first, second = written(replica, replica)
    assert sorted(first + second) == ["model.w", "model.x", "model.y", "model.z"]
    assert len(first) == len(second) == 2


def test_everybody_who_holds_a_shard_alone_writes_it() -> None:
    shards = [[piece("w", str(rank), box=((rank, 0), (1, 4)))] for rank in range(4)]
    assert written(*shards) == [["model.w"]] * 4


def test_replicas_of_shards_are_written_once() -> None:
    shards = [[piece("w", str(rank % 2), box=((2 * (rank % 2), 0), (2, 4)))] for rank in range(4)]
    assert sum(map(len, written(*shards))) == 2


def test_what_only_some_ranks_have_is_written_by_one_of_them() -> None:
    assert written([piece("first")], [piece("last")], [piece("first")]) == [["model.first"], ["model.last"], []]


def test_other_bytes_under_the_same_name_get_a_name_of_their_own() -> None:
    shares = divide(plans([piece("w", "a")], [piece("w", "b")], [piece("w", "a")], [piece("w", "b")]))
    names = [[key_of(path) for _, path in share.writes] for share in shares]
    assert names == [["model.w"], ["__understudy__.rank-1.model.w"], [], []]
    assert [share.elsewhere.get("model.w") for share in shares] == [None, names[1][0], None, names[1][0]]


def test_another_shape_under_the_same_name_is_not_mixed_up() -> None:
    shares = divide(plans([piece("w")], [piece("w", shape=(2,))]))
    assert shares[1].elsewhere == {"model.w": "__understudy__.rank-1.model.w"}


def test_values_for_other_readers_are_written_by_the_first_alone() -> None:
    values = [[Piece(("optimizer", "lr"), PICKLE, (3,), (0,), (3,), 3, digest)] for digest in "ab"]
    assert written(*values) == [["optimizer.lr"], []]
    assert divide(plans(*values))[1].elsewhere == {}


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (2, 4))],
        [((0, 0), (2, 4)), ((3, 0), (1, 4))],
        [((0, 0), (2, 4)), ((1, 0), (2, 4))],
        [((0, 0), (2, 4)), ((2, 0), (3, 4))],
        [((0, 0), (2, 2)), ((2, 0), (2, 2)), ((0, 2), (2, 2))],
        [((0, 0), (4, 4)), ((0, 0), (2, 4))],
    ],
    ids=["part", "hole", "overlap", "too far", "corner", "whole and part"],
)
def test_pieces_that_do_not_make_up_the_tensor_are_refused(boxes: list[Box]) -> None:
    with pytest.raises(CheckpointError, match=r"model\.w does not make up"):
        divide(plans(*([piece("w", str(rank), box=box)] for rank, box in enumerate(boxes))))


def test_a_grid_of_uneven_pieces_is_a_whole_tensor() -> None:
    rows, columns = [(0, 3), (3, 1)], [(0, 2), (2, 2)]
    cells = [((row, column), (high, wide)) for (row, high), (column, wide) in itertools.product(rows, columns)]
    assert written(*([piece("w", str(place), box=box)] for place, box in enumerate(cells))) == [["model.w"]] * 4


def test_every_rank_derives_the_same() -> None:
    everything = plans(*([piece(name, str(rank % 3)) for name in "abcdefgh"] for rank in range(6)))
    assert divide(everything) == divide(everything)
