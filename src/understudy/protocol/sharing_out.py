"""Which ranks work on the samples of absent ones, so that a smaller world still works on the whole batch.

Knows shares (which part of each batch a rank works on); nothing of samples, tensors or processes. Called by every rank
of a world that goes on without some of its ranks.

The batches of the absent shares are laid end to end and cut into equal pieces, one for each share that is present, in
order. A piece that reaches into two batches is cut there once more, because no part may be larger than the batch that
the script was made for. Every rank gets equally many pieces: whatever the script's body sends to other ranks, all of
them send it equally often.

    absent 2, present 0 1 3          absent 2 3, present 0 1       absent 3 4, present 0 1 2
    |   2   |                        |   2   |   3   |             |     3     |     4     |
    | 0 1 3 |                        |   0   |   1   |             | 0   0 | 1 | 1 | 2   2 |

Pieces are fractions, so that no rank has to know how many samples a batch has. Where a batch has fewer samples than
takers, some pieces have none.

Where replicas consist of several ranks (shards), batches are shared out among those that hold the same shard in other
replicas: a lane. So all ranks of a replica get pieces of the same size, and stay in step with each other whatever the
script makes of them.

Weights. A whole world's gradient is the mean over all W shares. The engine of a smaller one takes the mean over the W'
that are present, so each of these counts W'/W, and a piece of b of the B samples of another one counts W'/W * b/B where
the loss is a mean over samples, and W'/W where it is their sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

Reduction = Literal["mean", "sum"]
"""How the script's loss comes from the losses of its samples."""


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
    """`shares`: into how many parts each batch is divided; `absent`: those of absent ranks, in order. `lanes`:
    among which of them batches are shared out, each in the same order of replicas; none: among all."""

    shares: int
    absent: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...] = ()

    def present(self) -> list[int]:
        missing = set(self.absent)
        return [share for share in range(self.shares) if share not in missing]

    def pieces_of(self, share: int) -> tuple[Piece, ...]:
        """What a rank of `share` works on besides its own part. Equally many for every rank. Linear in the shares."""
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
