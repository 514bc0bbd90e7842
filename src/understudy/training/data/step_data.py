"""Data whose position is a function of the step, so that a retried step sees the same batch and a joiner needs nothing.

`Batches` deals the samples of a dataset in a seeded order per epoch; each step takes the next `world x batch_size`
of them and each rank its own slice. The script's own loaders are in `step_loader` and `stateful_loader`.
"""

from array import array
from collections.abc import Callable, Sequence, Sized
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import DataLoader, default_collate

from understudy.errors import ProtectError, UsageError
from understudy.state.digests import digest_text
from understudy.state.encoding import pack
from understudy.training.data.sampler_order import Say
from understudy.training.data.stateful_loader import LoaderData
from understudy.training.data.step_loader import StepLoader
from understudy.training.data.streams import CountedStream, stream_of
from understudy.training.positions import PositionedLoader


@runtime_checkable
class StepData(Protocol):
    """What `protect(data=...)` needs: which samples a rank sees in a step, and the batch itself."""

    def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[int]: ...
    def batch(self, step: int, rank: int, world_size: int) -> Any: ...


class Batches:
    """Deals a map-style dataset. Incomplete last rounds of an epoch are dropped, as DistributedSampler can do."""

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self._dataset, self._batch_size, self._seed = dataset, batch_size, seed
        self._shuffle, self._collate = shuffle, collate
        self._last: tuple[tuple[int, int, int], list[int]] = ((-1, -1, -1), [])
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0, dtype=torch.int64))

    def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[int]:
        size, rounds = len(cast(Sized, self._dataset)), self.steps_per_epoch(world_size)
        per_round = self._batch_size * world_size
        if self._last[0] != (step, rank, world_size):  # asked for twice per step: for the batch and for the ledger
            epoch, place = divmod(step, rounds)
            start = place * per_round + rank * self._batch_size
            ids = self._epoch_order(epoch, size)[start : start + self._batch_size].tolist()
            self._last = ((step, rank, world_size), ids)
        return self._last[1]

    def steps_per_epoch(self, shares: int) -> int:
        size, per_round = len(cast(Sized, self._dataset)), self._batch_size * shares
        if size < per_round:
            raise ProtectError(
                f"the dataset has {size} samples, fewer than the {per_round} of one step "
                f"(batch size {self._batch_size} x {shares} ranks)"
            )
        return size // per_round

    def batch(self, step: int, rank: int, world_size: int) -> Any:
        return self._make(self.sample_ids(step, rank, world_size))

    def part(self, step: int, rank: int, world_size: int, some: range) -> Any:
        """A batch of some of the samples of a rank, by their places in its batch."""
        return self._make(self.sample_ids(step, rank, world_size)[some.start : some.stop])

    def _make(self, ids: Sequence[int]) -> Any:
        return self._collate([self._dataset[i] for i in ids])

    def _epoch_order(self, epoch: int, size: int) -> torch.Tensor:
        if self._order[0] != epoch:
            if self._shuffle:
                generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
                self._order = (epoch, torch.randperm(size, generator=generator))
            else:
                self._order = (epoch, torch.arange(size))
        return self._order[1]


class FunctionData:
    """A function `(step, rank, world_size) -> batch`. The samples have no numbers; the step stands for them."""

    def __init__(self, make: Callable[[int, int, int], Any]) -> None:
        self._make = make

    def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[int]:
        return [step * world_size + rank]

    def batch(self, step: int, rank: int, world_size: int) -> Any:
        return self._make(step, rank, world_size)


class SeveralBatches:
    """`count` batches of `data` in each step, for scripts that accumulate gradients: the batch of a step is a list."""

    def __init__(self, data: StepData, count: int) -> None:
        self.data, self.count = data, count

    def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[int]:
        return [each for place in self._places(step) for each in self.data.sample_ids(place, rank, world_size)]

    def batch(self, step: int, rank: int, world_size: int) -> Any:
        return [self.data.batch(place, rank, world_size) for place in self._places(step)]

    def _places(self, step: int) -> range:
        return range(step * self.count, (step + 1) * self.count)


def batches_of(data: StepData | None) -> int:
    """In each step."""
    return data.count if isinstance(data, SeveralBatches) else 1


def steps_per_epoch_of(data: StepData | None, shares: int) -> int:
    """UsageError where the data does not know where an epoch ends."""
    if isinstance(data, SeveralBatches):
        return steps_per_epoch_of(data.data, shares) // data.count
    if isinstance(data, Batches | StepLoader):
        return data.steps_per_epoch(shares)
    raise UsageError(
        "how many steps an epoch has is not known: give job.epochs(count, steps_per_epoch=...), or data that knows it "
        "(understudy.Batches, a DataLoader over a map-style dataset) to job.protect(data=...)"
    )


def digest_of_samples(data: StepData, step: int, share: int, shares: int) -> str | None:
    """Stands for the samples of a batch in the ledger. None: they are not known."""
    ids = data.sample_ids(step, share, shares)
    if not ids:
        return None
    try:
        return digest_text(array("q", ids).tobytes())[:16]
    except TypeError:  # a sampler may yield whatever its dataset takes
        try:
            return digest_text(pack(list(ids), "the samples"))[:16]
        except ProtectError:
            return None


def as_step_data(data: Any, seed: int, say: Say = lambda _: None, batches: int = 1) -> StepData:
    """`batches`: in each step. A loader that knows its position gives them as one: it must stand where the step
    began until that is committed."""
    if stream_of(data) is not None:
        data = CountedStream(data)
    if isinstance(data, PositionedLoader) and not isinstance(data, StepData):
        return LoaderData(data, seed, batches)
    found = _as_step_data(data, seed, say)
    return found if batches == 1 else SeveralBatches(found, batches)


def _as_step_data(data: Any, seed: int, say: Say) -> StepData:
    """Accepts `Batches`, a DataLoader over a map-style dataset, a loader that knows its position (torchdata's
    StatefulDataLoader), a function of the step, or an own `StepData`. `say` is told what is not kept of a loader."""
    if isinstance(data, StepData):
        return data
    if isinstance(data, DataLoader):
        return StepLoader(data, seed, say)
    if callable(data):
        return FunctionData(data)
    raise ProtectError(
        f"data is a {type(data).__name__}; give understudy.Batches, a DataLoader over a map-style dataset, or a "
        "function (step, rank, world_size) -> batch"
    )
