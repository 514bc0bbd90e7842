"""Cuts a batch: the samples from one place to another, out of whatever the script's batches are made of.

Samples lie along the first dimension of every tensor and array. Lists, tuples, dictionaries and dataclasses are gone
through; a list of other things (names, captions) is cut if it has one for each sample; single values belong to all
samples. Data that deals its samples itself (`Batches`, a DataLoader) is asked for a few of them instead, which also
loads fewer.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from understudy.errors import UsageError

_SINGLE = (str, bytes, int, float, complex, bool, type(None))


@runtime_checkable
class DealsSamples(Protocol):
    """Data that can make a batch of some of the samples of a share, named by their places in its batch."""

    def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[int]: ...
    def part(self, step: int, rank: int, world_size: int, some: range) -> Any: ...


def cut(data: Any, step: int, share: int, shares: int, choose: Callable[[int], range]) -> tuple[Any, int]:
    """Of the batch of one share the samples that `choose` names when it is told how many there are; and how many."""
    if isinstance(data, DealsSamples):
        size = len(data.sample_ids(step, share, shares))
        return data.part(step, share, shares, choose(size)), size
    batch = data.batch(step, share, shares)
    size = length(batch)
    return slice_batch(batch, choose(size), size), size


def length(batch: Any) -> int:
    """How many samples a batch has. UsageError when its tensors do not agree, or when it has none."""
    found = sorted(set(_lengths(batch)))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"a batch cannot be divided: there is no tensor with samples in it ({type(batch).__name__})")
    raise UsageError(
        f"a batch cannot be divided: its tensors have {found[0]} and {found[-1]} entries in their first dimension, "
        "which should be the samples"
    )


def slice_batch(batch: Any, some: range, size: int) -> Any:
    """The samples `some` of a batch that has `size` of them."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return batch[some.start : some.stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        parts = {key: slice_batch(part, some, size) for key, part in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, list | tuple):
        return _slice_sequence(batch, some, size)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch) if field.init}
        return dataclasses.replace(batch, **{name: slice_batch(part, some, size) for name, part in fields.items()})
    if isinstance(batch, _SINGLE):
        return batch
    raise UsageError(f"a batch cannot be divided: a {type(batch).__name__} cannot be sliced")


def _slice_sequence(batch: "list[Any] | tuple[Any, ...]", some: range, size: int) -> Any:
    if batch and all(isinstance(part, _SINGLE) for part in batch):
        if len(batch) != size:
            raise UsageError(
                f"a batch cannot be divided: it has {size} samples, and a {type(batch).__name__} of {len(batch)} values"
            )
        return batch[some.start : some.stop]
    parts = [slice_batch(part, some, size) for part in batch]
    if isinstance(batch, list):
        return parts
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


def _lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, torch.Tensor | np.ndarray):
        if batch.ndim:
            yield int(batch.shape[0])
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _lengths(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _lengths(part)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _lengths(getattr(batch, field.name))
