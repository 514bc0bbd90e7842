"""Loaders that know their own position (torchdata's StatefulDataLoader): read one batch per step, and shipped by state.

A loader cannot be asked for the batch of a step, so the batch of the present step is kept until the next one is asked
for. A body may change its batch in place (`x.div_(255)`), and must get it unchanged when it runs again. Whether a body
does so is seen in its first steps; only then a copy of every batch is kept. Should a body begin with it later, the
loader goes back to where the step began and reads the batch again, as the loader of a replacement does. Digests show
what was changed, and whether the loader gave the same batch.

Everything that the loader draws from the process's random streams is drawn beside them, from a seed of its own: a
replacement that opens a loader in the middle of an epoch must not shift the stream of the step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from understudy.errors import ProtectError, UsageError
from understudy.training.data.batch_content import copy_batch, digest_batch
from understudy.training.positions import PositionedLoader
from understudy.training.rng import derived_seed, seed_all, undisturbed

_LOADER = 0x10AD  # makes the loader's seeds differ from the step's
_WATCHED_BATCHES = 3
_CHANGED = (
    "the body of step {step} runs again. It had changed its batch in place, and the loader gave another batch when it "
    "was put back to read it once more. Let the body leave its batch as it is: x = x / 255 instead of x.div_(255)"
)


class LoaderData:
    """One batch of the loader per step, or a list of several `batches`. An epoch that ends is followed by the next
    one."""

    def __init__(self, loader: PositionedLoader, seed: int, batches: int = 1) -> None:
        self._loader, self._seed, self._batches = loader, seed, batches
        self._iterator: Iterator[Any] | None = None
        self._step, self._batch = -1, cast(Any, None)
        self._digest: int | None = None  # of the batch as the loader gave it; None: not known
        self._copy: Any = None  # of the same, if the body changes its batches
        self._to_watch, self._copies = _WATCHED_BATCHES, False
        self._expected: tuple[int, int] | None = None  # a step whose batch is read again, and its digest
        self.protected = True  # False: no body runs twice and nothing is recorded, so that nothing has to be known

    def batch(self, step: int, rank: int, _world_size: int) -> Any:
        if step != self._step:
            self._watch()
            with undisturbed():
                seed_all(derived_seed(self._seed ^ _LOADER, step, rank))
                self._batch = self._next() if self._batches == 1 else [self._next() for _ in range(self._batches)]
            self._step = step
            if self.protected:
                self._digest = digest_batch(self._batch)
                self._copy = _copy_if_possible(self._batch) if self._copies else None
                self._check_expected()
        return self._batch

    def _watch(self) -> None:
        """The body is done with its batch. Does it change its batches?"""
        if self._digest is None or self._copies or not self._to_watch:
            return
        self._to_watch -= 1
        self._copies = digest_batch(self._batch) != self._digest

    def run_again(self, step: int, position: Callable[[], dict[str, Any]]) -> None:
        """The body of `step` begins again. `position`: the loader's state before the batch of that step was read."""
        if step != self._step or (self._digest is not None and digest_batch(self._batch) == self._digest):
            return
        self._copies = True
        if self._copy is not None:
            self._batch = copy_batch(self._copy)
            return
        expected = None if self._digest is None else (step, self._digest)
        self.load_state_dict(position())
        self._expected = expected

    def _check_expected(self) -> None:
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] == self._step and expected[1] != self._digest:
            raise UsageError(_CHANGED.format(step=self._step))

    def sample_ids(self, step: int, _rank: int, _world_size: int) -> Sequence[int]:
        """The loader does not tell; the digest of the batch stands for them. Nothing is known of past steps."""
        return [self._digest] if step == self._step and self._digest is not None else []

    def state_dict(self) -> dict[str, Any]:
        with undisturbed():  # to ask may open the loader
            return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._watch()
        with undisturbed():
            self._loader.load_state_dict(state)
        self._iterator, self._step, self._batch = None, -1, None
        self._digest = self._copy = self._expected = None

    def _next(self) -> Any:
        for _ in range(2):  # what is left of this epoch, then the next one
            if self._iterator is None:
                self._iterator = iter(self._loader)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise ProtectError("data is a loader that gives no batch at all")


def _copy_if_possible(batch: Any) -> Any:
    try:
        return copy_batch(batch)
    except Exception:  # a container of the script's own that is made in another way; the loader can still go back
        return None
