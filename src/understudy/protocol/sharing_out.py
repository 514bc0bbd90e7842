"""Who works on the samples of absent ranks, so that a smaller world still works on the whole batch.

Knows shares (which part of each batch a rank works on), twins and groups; nothing of samples, tensors or processes.
Called by whoever decides whether a world can go on without some of its ranks, and by every rank that then does.

The batches of the absent shares are laid end to end and cut into equal pieces, one for each share that is present, in
order. A piece that reaches into two batches is cut there once more, because no part may be larger than the batch that
the script was made for. Everybody gets equally many pieces: whatever the script's body says to other ranks, they say it
equally often.

    absent 2, present 0 1 3          absent 2 3, present 0 1       absent 3 4, present 0 1 2
    |   2   |                        |   2   |   3   |             |     3     |     4     |
    | 0 1 3 |                        |   0   |   1   |             | 0   0 | 1 | 1 | 2   2 |

Pieces are fractions, so that nobody has to know how many samples a batch has. Where a batch has fewer samples than
takers, some pieces have none.

Where replicas consist of several ranks (shards), batches are shared out among twins: the batch of an absent rank goes
to those that hold the same shard in other replicas. So all ranks of a replica get pieces of the same size, and stay in
step with each other whatever the script makes of them (if the ranks of each lane come in the same order of replicas, as
in every device mesh). The shares of twins are a lane.

Weights. A whole world's gradient is the mean over all W shares. The engine of a smaller one takes the mean over the W'
that are present, so each of these counts W'/W, and a piece of b of the B samples of another one counts W'/W * b/B where
the loss is a mean over samples, and W'/W where it is their sum.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

from understudy.foundation.ids import Rank
from understudy.protocol.donors import named

Reduction = Literal["mean", "sum"]
"""How the script's loss comes from the losses of its samples."""


@dataclass(frozen=True, slots=True)
class CannotShareOut:
    """The world cannot go on without these ranks."""

    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the batch of `share`, from the fraction `start` of its samples to the fraction `stop`."""

    share: int
    start: Fraction
    stop: Fraction

    def samples(self, size: int) -> range:
        """Which samples of a batch of `size`. Neighbouring pieces meet; together they are all of them, each once."""
        return range(floor(self.start * size), floor(self.stop * size))

    def halves(self) -> "tuple[Piece, Piece]":
        middle = (self.start + self.stop) / 2
        return Piece(self.share, self.start, middle), Piece(self.share, middle, self.stop)


@dataclass(frozen=True, slots=True)
class SharingOut:
    """`shares`: into how many parts each batch is divided; `absent`: those that nobody works on, in order. `lanes`:
    among which of them batches are shared out; none: among all."""

    shares: int
    absent: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...] = ()

    def present(self) -> list[int]:
        missing = set(self.absent)
        return [share for share in range(self.shares) if share not in missing]

    def pieces_of(self, share: int) -> tuple[Piece, ...]:
        """What a rank of `share` works on besides its own part. Equally many for everybody. Linear in the shares."""
        lane = next((lane for lane in self.lanes if share in lane), range(self.shares))
        missing = set(self.absent)
        given = [other for other in lane if other in missing]
        takers = [other for other in lane if other not in missing]
        pieces = list(_cut(given, takers.index(share), len(takers)))
        if len(pieces) < max(_touched(len(given), place, len(takers)) for place in range(len(takers))):
            largest = max(range(len(pieces)), key=lambda place: pieces[place].stop - pieces[place].start)
            pieces[largest : largest + 1] = pieces[largest].halves()
        return tuple(pieces)

    @property
    def own_weight(self) -> Fraction:
        return Fraction(self.shares - len(self.absent), self.shares)

    def weight(self, taken: int, size: int, reduction: Reduction) -> Fraction:
        """Of `taken` samples out of the `size` of a batch. Nothing taken counts nothing."""
        if taken == 0:
            return Fraction(0)
        return self.own_weight * Fraction(taken, size) if reduction == "mean" else self.own_weight


def _touched(batches: int, place: int, takers: int) -> int:
    """How many of the batches the stretch of one taker reaches into. Two takers differ by one at most."""
    return -(-(place + 1) * batches // takers) - place * batches // takers


def _cut(given: Sequence[int], place: int, takers: int) -> Iterator[Piece]:
    """The stretch of one taker."""
    begin, end = (Fraction(mark * len(given), takers) for mark in (place, place + 1))
    while begin < end:
        batch = floor(begin)
        stop = min(end, Fraction(batch + 1))
        yield Piece(given[batch], begin - batch, stop - batch)
        begin = stop


def share_out(
    shares: Mapping[Rank, tuple[int, int]], absent: Collection[Rank], twin_keys: Mapping[Rank, str]
) -> SharingOut | CannotShareOut:
    """`shares`: (index, count) of every rank of the whole world."""
    counts = {count for _, count in shares.values()}
    if len(counts) != 1:
        return CannotShareOut(f"ranks do not agree into how many shares a batch is divided: {sorted(counts)}")
    (count,) = counts
    staying: dict[int, Rank] = {}
    for rank in sorted(shares, reverse=True):
        if rank not in absent:
            staying[shares[rank][0]] = rank
    if not staying:
        return CannotShareOut("no rank would be left")
    for rank in sorted(absent):
        if (stays := staying.get(shares[rank][0])) is not None:
            return CannotShareOut(f"rank {rank} works on the same samples as rank {stays}, which would stay")
    missing = tuple(sorted({shares[rank][0] for rank in absent}))
    unknown = set(range(count)) - set(staying) - set(missing)
    if unknown:
        return CannotShareOut(f"no rank has share {min(unknown)} of {count}")
    return SharingOut(count, missing, _lanes(shares, set(missing), twin_keys))


def _lanes(
    shares: Mapping[Rank, tuple[int, int]], absent: Collection[int], twin_keys: Mapping[Rank, str]
) -> tuple[tuple[int, ...], ...]:
    """Shares by twin. None where that is no division of them into lanes that have lost equally many."""
    by_key: dict[str, set[int]] = defaultdict(set)
    for rank, (share, _) in shares.items():
        by_key[twin_keys.get(rank, "")].add(share)
    lanes = sorted({tuple(sorted(lane)) for lane in by_key.values()})
    sizes = {(len(lane), sum(share in absent for share in lane)) for lane in lanes}
    if len(sizes) != 1 or sum(map(len, lanes)) != len({share for lane in lanes for share in lane}):
        return ()
    (length, missing), *_ = sizes
    return tuple(lanes) if missing < length and len(lanes) > 1 else ()


def whole_replicas(
    lost: Collection[Rank], groups: Collection[Collection[Rank]], twin_keys: Mapping[Rank, str]
) -> frozenset[Rank] | CannotShareOut:
    """The ranks that cannot go on without the `lost` ones, and those themselves: all of every replica that lost one.

    `groups`: the members of every process group of the job. Ranks of one group none of which is another's twin hold one
    replica together (a shard group, a tensor or pipeline group). In all other groups the members that stay suffice.
    """
    bound: dict[Rank, set[Rank]] = defaultdict(set)
    for group in groups:
        if len({twin_keys.get(rank, "") for rank in group}) == len(group):
            for rank in group:
                bound[rank].update(group)
    absent: set[Rank] = set()
    found = list(lost)
    while found:
        rank = found.pop()
        if rank not in absent:
            absent.add(rank)
            found.extend(bound[rank])
    kept = {key for rank, key in twin_keys.items() if rank not in absent}
    orphans = sorted(rank for rank in absent if twin_keys.get(rank, "") not in kept)
    if orphans:
        return CannotShareOut(f"no replica is left whole: nobody else holds the state of {named(orphans)}")
    return frozenset(absent)
