"""Which samples each rank takes in each step, according to the sampler of the script's own DataLoader.

One pass over the sampler is an epoch. What it yields must be a function of (seed, epoch), on every rank and in every
process: each pass is read with `set_epoch(epoch)` called, and with random streams (and a `generator`) that were seeded
for that epoch. The script's sampler object and the process's random streams stay as they are.

- A sampler with a rank of its own (`num_replicas` and `rank`, as DistributedSampler) yields the list of one share. The
  list of another share is that of a copy with another rank.
- The order of any other sampler is dealt: each step takes the next `shares x batch_size`, and each share its slice.
- Own batch samplers likewise, with whole batches in the place of samples.

Knows nothing of batches as tensors, of workers and of members. Called by `step_loader`.
"""

import contextlib
import copy
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from understudy.errors import ProtectError
from understudy.training.rng import derived_seed, seed_all, undisturbed

Say = Callable[[str], None]
"""Tells the user, once, of something that is not as they may think."""

_ORDER = 0x0BDE8  # makes the seeds of orders differ from those of steps
_WITHOUT_MEMORY = (
    *(SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, BatchSampler),
    *(list, tuple, range),
)
"""Two passes of these differ only by what we set: the epoch, the generator, the process's random streams."""

_RANK_NAMES = (
    ("num_replicas", "rank"),
    ("world_size", "rank"),
    ("_world_size", "_rank"),
    ("num_processes", "process_index"),
)
_INNER = ("sampler", "batch_sampler")
_NO_LENGTH = (
    "data is a DataLoader whose {kind} has no len(): where an epoch ends is not known. Give the {kind} a __len__ "
    "(how many items it yields in one epoch), or use torchdata's StatefulDataLoader, or a function "
    "(step, rank, world_size) -> batch"
)


class SamplerOrder:
    """The items of the sampler are samples, of which a share takes as many as a batch has; or, where the script has a
    batch sampler of its own or does not batch at all, whole batches, of which it takes one.

    An incomplete last round of an epoch is dropped with `drop_last`. Otherwise it is dealt too, and the begin of the
    epoch fills it up so that all shares have equally many."""

    def __init__(self, loader: "DataLoader[Any]", seed: int, say: Say = lambda _: None) -> None:
        self._seed, self._say = seed, say
        batches: Any = loader.batch_sampler
        self._of_samples = type(batches) is BatchSampler
        if self._of_samples:
            sampler, self._per_share, self._drop_last = batches.sampler, batches.batch_size, batches.drop_last
        else:
            sampler = loader.sampler if batches is None else batches
            self._per_share, self._drop_last = 1, bool(getattr(batches, "drop_last", False))
        self._sampler: Any = sampler
        self.kind = type(sampler).__name__
        try:
            self._length = len(sampler)
        except TypeError:
            raise ProtectError(_NO_LENGTH.format(kind=self.kind)) from None
        self._rank_of = _find_rank(sampler)
        self._passes: dict[tuple[int, int], Sequence[Any]] = {}  # (epoch, share); of two epochs at most
        self._other_length_said = False
        self._living: dict[int, tuple[Any, int]] = {}  # of samplers with a memory: the object, and its next epoch
        self._shared = {**_datasets_of(sampler), id(loader.dataset): loader.dataset}  # never copied
        self._untouched = self._copy_if_it_remembers()

    # -- what each share takes ----------------------------------------------------------------------------------------

    @property
    def is_own(self) -> bool:
        """It is no sampler of torch, and says nothing about ranks."""
        return self._rank_of is None and any(type(part) not in _WITHOUT_MEMORY for part in _chain(self._sampler))

    @property
    def replicas(self) -> int | None:
        """For how many ranks the sampler divides its samples itself; None: it leaves that to us."""
        return None if self._rank_of is None else int(self._rank_of[2])

    def steps_per_epoch(self, shares: int) -> int:
        per_round = self._per_share * self._takers(shares)
        rounds: int = self._length // per_round if self._drop_last else -(-self._length // per_round)
        if rounds:
            return rounds
        items = "samples" if self._of_samples else "batches"
        raise ProtectError(
            f"the {self.kind} of the DataLoader yields {self._length} {items}, fewer than the {per_round} of one step "
            f"({self._per_share} for each of {self._takers(shares)} ranks)"
            f"{'. Without drop_last=True a smaller step would be made of them' if self._length else ''}"
        )

    def take(self, step: int, share: int, shares: int) -> tuple[int, Any]:
        """The epoch of a step, and what a share takes in it: a list of samples, or the one item that is its batch."""
        epoch, round_number = divmod(step, self.steps_per_epoch(shares))
        takers = self._takers(shares)
        start = round_number * self._per_share * takers
        each = min(self._per_share, -(-(self._length - start) // takers))  # fewer in the last round of an epoch
        first = start + (share if takers > 1 else 0) * each
        items = self._pass(epoch, share, shares)
        if first + each <= min(self._length, len(items)):
            taken = list(items[first : first + each])
        else:
            taken = [items[place % self._length % len(items)] for place in range(first, first + each)]
        return epoch, taken if self._of_samples else taken[0]

    def _takers(self, shares: int) -> int:
        return shares if self._rank_of is None else 1

    def objection(self, shares: int) -> str | None:
        """Why the samples of another share cannot be told, if so."""
        if self._rank_of is None:
            return None
        if self.replicas != shares:
            return (
                f"the {self.kind} of the DataLoader divides its samples among {self.replicas} ranks, and there are "
                f"{shares} shares"
            )
        if type(self._rank_of[0]) is DistributedSampler or shares == 1:
            return None
        try:
            follows = self._length == 1 or not _same(self._pass(0, 0, shares), self._pass(0, 1, shares))
        except AttributeError:  # it cannot be set
            follows = False
        return None if follows else f"the order of the {self.kind} does not follow its attribute {self._rank_of[1]}"

    # -- one pass -----------------------------------------------------------------------------------------------------

    def _pass(self, epoch: int, share: int, shares: int) -> Sequence[Any]:
        rank = share if self._rank_of is not None and self.replicas == shares else -1  # -1: whatever it is
        if (epoch, rank) not in self._passes:
            self._passes = {key: kept for key, kept in self._passes.items() if abs(key[0] - epoch) <= 1}
            if self._untouched is None:
                items = self._read(_copy(self._sampler), epoch, rank)
            else:
                items = self._read_in_order(epoch, rank)
            self._check_length(items, epoch)
            self._passes[epoch, rank] = _compact(items)
        return self._passes[epoch, rank]

    def _read(self, sampler: Any, epoch: int, rank: int) -> list[Any]:
        seed = derived_seed(self._seed ^ _ORDER, epoch, 0)  # the same on all ranks
        for part in _chain(sampler):
            if isinstance(getattr(part, "generator", None), torch.Generator):
                with contextlib.suppress(AttributeError):
                    part.generator = torch.Generator(part.generator.device).manual_seed(seed)
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        found = _find_rank(sampler)
        if found is not None and rank >= 0 and getattr(found[0], found[1]) != rank:
            setattr(found[0], found[1], rank)
        with undisturbed():
            seed_all(seed)
            return list(itertools.islice(iter(sampler), self._length + 1))  # some yield without an end

    def _read_in_order(self, epoch: int, rank: int) -> list[Any]:
        """A sampler with a memory: its passes follow from each other, so all before this one are read too."""
        living, following = self._living.get(rank, (None, 0))
        if living is None or epoch < following:
            living, following = copy.deepcopy(self._untouched, dict(self._shared)), 0
        items: list[Any] = []
        for number in range(following, epoch + 1):
            items = self._read(living, number, rank)
        self._living[rank] = (living, epoch + 1)
        return items

    def _copy_if_it_remembers(self) -> Any:
        """Does a pass depend on those before it? Then: the sampler as it is now, from which they can be repeated."""
        if all(type(part) in _WITHOUT_MEMORY for part in _chain(self._sampler)):
            return None
        try:
            untouched, tried = (copy.deepcopy(self._sampler, dict(self._shared)) for _ in range(2))
        except Exception:
            untouched, tried = None, _copy(self._sampler)
        if _same(self._read(tried, 0, -1), self._read(tried, 0, -1)):
            return None
        if untouched is None:
            raise ProtectError(
                f"data is a DataLoader with a {self.kind} that yields another order whenever it is iterated over, and "
                "cannot be copied: its order for a step is not known. Let it make its order from a seed and the "
                "number of the epoch, which it is told by set_epoch(epoch)"
            )
        return untouched

    def _check_length(self, items: list[Any], epoch: int) -> None:
        if not items:
            raise ProtectError(f"the {self.kind} of the DataLoader yields nothing in epoch {epoch}")
        if len(items) != self._length and not self._other_length_said:
            self._other_length_said = True
            fewer = len(items) < self._length
            self._say(
                f"the {self.kind} of the DataLoader has a len() of {self._length} and yields "
                f"{len(items) if fewer else 'more'} items in epoch {epoch}. Every epoch takes {self._length} of them"
                f"{', those at its begin twice' if fewer else ', and the rest is dropped'}"
            )


def _chain(sampler: Any) -> Iterator[Any]:
    """A sampler, what it wraps, what that wraps."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        sampler = next((inner for name in _INNER if (inner := getattr(sampler, name, None)) is not None), None)


def _copy(sampler: Any) -> Any:
    """A copy of the whole chain, which shares everything else with the script's sampler."""
    one = copy.copy(sampler)
    for name in _INNER:
        if getattr(one, name, None) is not None:
            with contextlib.suppress(AttributeError):  # a property
                setattr(one, name, _copy(getattr(one, name)))
            break
    return one


def _datasets_of(sampler: Any) -> dict[int, Any]:
    """By their id, as `copy.deepcopy` wants to know what it must not copy."""
    parts = (part for owner in _chain(sampler) for part in getattr(owner, "__dict__", {}).values())
    return {id(part): part for part in parts if isinstance(part, Dataset)}


def _find_rank(sampler: Any) -> tuple[Any, str, int] | None:
    """Whose attribute the rank is, its name, and for how many ranks."""
    for part in _chain(sampler):
        for count, rank in _RANK_NAMES:
            if isinstance(getattr(part, count, None), int) and isinstance(getattr(part, rank, None), int):
                return part, rank, getattr(part, count)
    return None


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # items are tensors or arrays
        return repr(one) == repr(other)


def _compact(items: list[Any]) -> Sequence[Any]:
    return array("q", items) if all(type(item) is int for item in items) else items
