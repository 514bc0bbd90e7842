"""The parts of a step while ranks are absent: pieces of their batches first, then this rank's own.

The body of a step runs once for each part. All but the last are unwound before they change anything, with their
gradients added up, not averaged over replicas; the last adds this rank's own batch, averages, and goes on to the fence.
How much each part counts is in `protocol.sharing_out`.

An earlier part is unwound when it has run as many backward passes as the body did in its first step: what comes after
them (clipping, logs) is meant for the sum. One that runs fewer, because it has fewer samples, gets as far as
`optimizer.step()`. More in the last part than that would be gradients that the earlier ones lack: then it is an error.

Every rank has equally many parts. Where a piece has no sample, one is run and counts nothing: its time is that of the
ranks that do have one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from understudy.errors import PartFinished, UsageError
from understudy.groups.engines import Engines
from understudy.ledger.records import Sharing, Taken
from understudy.protocol.sharing_out import Piece, Reduction, SharingOut
from understudy.training.backwards import Backwards
from understudy.training.data.step_data import StepData, digest_of_samples
from understudy.training.degraded.gradient_stash import GradientStash
from understudy.training.degraded.slicing import cut


@dataclass(frozen=True, slots=True)
class Part:
    """`share`: whose batch, and whose random numbers. `piece`: which part of it; None: all, and it is our own."""

    share: int
    piece: Piece | None

    @property
    def last(self) -> bool:
        return self.piece is None


class Accumulation:
    """Which part of the step is next, and what is kept from those before it. `share`: this rank's own."""

    def __init__(
        self,
        sharing: SharingOut,
        share: int,
        *,
        data: StepData,
        engines: Engines,
        parameters: Iterable[torch.Tensor],
        backward_passes: int,
        reduction: Reduction = "mean",
    ) -> None:
        self._backward_passes = backward_passes
        self._sharing, self._share, self._reduction = sharing, share, reduction
        self._data, self._engines = data, engines
        self._stash = GradientStash(parameters)
        self._parts = [*(Part(piece.share, piece) for piece in sharing.pieces_of(share)), Part(share, None)]
        self._next = 0
        self._unwound_early = False
        self._taken: list[Taken] = []
        self._taking: Taken | None = None  # by the part that runs, once its body has asked for its batch
        self._backwards = Backwards()

    @property
    def next(self) -> Part:
        return self._parts[self._next]

    # -- one part -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The next part begins."""
        self._taking = None
        if self.next.last:
            self._backwards = Backwards(float(self._sharing.own_weight), before=self._before_own_backward)
        else:
            self._engines.add_up_only(True)
            self._backwards = Backwards(before=self._stash.restore, after=self._after_backward)
        self._backwards.begin()

    def _after_backward(self) -> None:
        if self._backwards.count == self._backward_passes:
            self._stash.stash()
            self._unwound_early = True
            raise PartFinished("the backward passes of this part are done")
        self._stash.stash_and_show()

    def _before_own_backward(self) -> None:
        if self._unwound_early and self._backwards.count == self._backward_passes:
            raise UsageError(
                f"a step was to be done in parts, but its body runs more than the {self._backward_passes} backward "
                "passes of its first step, and its earlier parts were left after these"
            )
        self._stash.restore()

    def batch(self, step: int) -> Any:
        """What the part that runs works on."""
        part, shares = self.next, self._sharing.shares
        if part.piece is None:
            return self._data.batch(step, part.share, shares)
        piece = part.piece
        batch, size = cut(self._data, step, part.share, shares, lambda size: _at_least_one(piece, size))
        samples = piece.samples(size)
        self._backwards.weight = float(self._sharing.weight(len(samples), size, self._reduction))
        digest = digest_of_samples(self._data, step, part.share, shares)
        self._taking = Taken(share=part.share, start=samples.start, stop=samples.stop, size=size, batch=digest)
        return batch

    def end(self) -> None:
        """The body of a part was left, in whatever way."""
        self._backwards.end()
        self._engines.add_up_only(False)

    def advance(self) -> None:
        """An earlier part is done. UsageError if its gradients cannot have been those of its samples."""
        if self._taking is None:
            raise UsageError("a step was to be done in parts, but its body does not take its batch from step.batch()")
        if not self._backwards.count:
            raise UsageError("a step was to be done in parts, but its body runs no backward pass before its optimizer")
        self._stash.drop_shown()
        if self._taking.start < self._taking.stop:
            self._taken.append(self._taking)
        self._next += 1

    def refuse_late_backward(self) -> None:
        """The optimizer is about to step: a backward pass from now on could not have had its earlier parts."""
        self._backwards.refuse(
            UsageError("a step was to be done in parts, but its body runs a backward pass after its optimizer")
        )

    # -- one step -----------------------------------------------------------------------------------------------------

    def start_over(self) -> None:
        """The step is done, or has to be done again from its first part."""
        self._stash.clear()
        self._next, self._taken, self._unwound_early = 0, [], False

    def record(self) -> Sharing:
        """For the ledger: what this rank worked on besides its own batch."""
        return Sharing(
            share=self._share, shares=self._sharing.shares, absent=self._sharing.absent, taken=tuple(self._taken)
        )


def _at_least_one(piece: Piece, size: int) -> range:
    samples = piece.samples(size)
    if samples:
        return samples
    place = min(samples.start, size - 1)
    return range(place, place + 1)
