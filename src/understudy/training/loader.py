"""Loaders that know their own position (torchdata's StatefulDataLoader): read one batch per step, and shipped by state.

A loader cannot be asked for the batch of a step, so the batch of the present step is kept until the next one is asked
for. Everything that the loader draws from the process's random streams is drawn beside them, from a seed of its own:
a replacement that opens a loader in the middle of an epoch must not shift the stream of the step.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from understudy.errors import ProtectError
from understudy.state.digests import digest_text
from understudy.state.encoding import pack
from understudy.training.randomness import derived_seed, seed_all
from understudy.training.streams import undisturbed

_LOADER = 0x10AD  # makes the loader's seeds differ from the step's


@runtime_checkable
class PositionedLoader(Protocol):
    """What a loader must have to be shipped."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class LoaderData:
    """One batch of the loader per step. An epoch that ends is followed by the next one."""

    def __init__(self, loader: PositionedLoader, seed: int) -> None:
        self._loader, self._seed = loader, seed
        self._iterator: Iterator[Any] | None = None
        self._step, self._batch = -1, None

    def batch(self, step: int, rank: int, _world_size: int) -> Any:
        if step != self._step:
            with undisturbed():
                seed_all(derived_seed(self._seed ^ _LOADER, step, rank))
                self._batch = self._next()
            self._step = step
        return self._batch

    def sample_ids(self, step: int, _rank: int, _world_size: int) -> Sequence[int]:
        """The loader does not tell; the digest of the batch stands for them. Nothing is known of past steps."""
        if step != self._step:
            return []
        try:
            return [int(digest_text(pack(self._batch, "batch"))[:15], 16)]
        except ProtectError:
            return []  # made of things that have no bytes

    def state_dict(self) -> dict[str, Any]:
        with undisturbed():  # to ask may open the loader
            return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with undisturbed():
            self._loader.load_state_dict(state)
        self._iterator, self._step, self._batch = None, -1, None

    def _next(self) -> Any:
        for _ in range(2):  # what is left of this epoch, then the next one
            if self._iterator is None:
                self._iterator = iter(self._loader)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise ProtectError("data is a loader that gives no batch at all")
