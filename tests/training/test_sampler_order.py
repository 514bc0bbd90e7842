"""The order of a loader's samples is a function of the step: for every sampler, from any step on, for every share."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from understudy.errors import ProtectError
from understudy.state.digests import digest_rng
from understudy.training.data.sampler_order import SamplerOrder

SIZE = 22


class Numbers(Dataset[int]):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> int:
        return number

    def __deepcopy__(self, _: Any) -> Any:
        raise AssertionError("a dataset is never copied")


class ShufflesInPlace(Sampler[int]):
    def __init__(self, dataset: Any) -> None:
        self.dataset, self.numbers = dataset, list(range(len(dataset)))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.numbers)
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


class CountsItsEpochs(ShufflesInPlace):
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(np.random.RandomState(self.epoch).permutation(len(self.numbers)).tolist())


class HasItsOwnGenerator(ShufflesInPlace):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.chance = np.random.RandomState(1)

    def __iter__(self) -> Iterator[int]:
        return iter(self.chance.permutation(len(self.numbers)).tolist())


class IsToldItsEpoch(ShufflesInPlace):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.RandomState(self.epoch).permutation(len(self.numbers)).tolist())


class TwoOfAKind(BatchSampler):
    """Batches of samples that are near to each other."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler, 2, False)


def loader_with(sampler: Any = None, **options: Any) -> "DataLoader[int]":
    return DataLoader(Numbers(), batch_size=4, sampler=sampler, **options)


WHOLE: dict[
    str, Callable[[], DataLoader[int]]
] = {  # samplers that yield every sample once per epoch, and are dealt among all ranks
    "sequential": loader_with,
    "shuffle": lambda: loader_with(shuffle=True),
    "shuffle with a generator": lambda: loader_with(shuffle=True, generator=torch.Generator()),
    "subset": lambda: loader_with(SubsetRandomSampler(range(SIZE))),
    "a list": lambda: loader_with(list(reversed(range(SIZE)))),
    "shuffles in place": lambda: loader_with(ShufflesInPlace(Numbers())),
    "counts its epochs": lambda: loader_with(CountsItsEpochs(Numbers())),
    "has a generator of its own": lambda: loader_with(HasItsOwnGenerator(Numbers())),
    "is told its epoch": lambda: loader_with(IsToldItsEpoch(Numbers())),
    "a plain batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers()), 4, False)
    ),
}
OTHERS: dict[str, Callable[[], DataLoader[int]]] = {
    "with replacement": lambda: loader_with(RandomSampler(Numbers(), replacement=True, num_samples=50)),
    "more than there are": lambda: loader_with(RandomSampler(Numbers(), num_samples=50)),
    "weighted": lambda: loader_with(WeightedRandomSampler([1.0] * SIZE, 30)),
    "distributed": lambda: loader_with(DistributedSampler(Numbers(), num_replicas=3, rank=0, seed=5)),
    "own batches": lambda: DataLoader(Numbers(), batch_sampler=TwoOfAKind(RandomSampler(Numbers()))),
    "own batches, distributed": lambda: DataLoader(
        Numbers(), batch_sampler=TwoOfAKind(DistributedSampler(Numbers(), num_replicas=3, rank=0))
    ),
    "not batched": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
}
ALL = {**WHOLE, **OTHERS}


def of_epoch(order: SamplerOrder, epoch: int, shares: int) -> list[list[Any]]:
    """For each step of an epoch what the shares take, one after another."""
    rounds = order.steps_per_epoch(shares)
    return [
        [order.take(step, share, shares)[1] for share in range(shares)]
        for step in range(epoch * rounds, (epoch + 1) * rounds)
    ]


def flat(steps: list[list[Any]]) -> list[int]:
    return [number for step in steps for taken in step for number in taken]


@pytest.mark.parametrize("name", ALL)
def test_another_process_finds_the_same_from_any_step_on(name: str) -> None:
    order = SamplerOrder(ALL[name](), seed=7)
    expected = [[order.take(step, share, 3) for share in range(3)] for step in range(40)]
    for first in (39, 17, 0):
        random.seed(first), np.random.seed(first), torch.manual_seed(first)
        joiner = SamplerOrder(ALL[name](), seed=7)
        assert [[joiner.take(step, share, 3) for share in range(3)] for step in range(first, 40)] == expected[first:]
    assert [order.take(9, share, 3) for share in range(3)] == expected[9]  # everybody went back


@pytest.mark.parametrize("name", ALL)
def test_epochs_differ_and_reading_leaves_the_random_streams_alone(name: str) -> None:
    loader = ALL[name]()
    order = SamplerOrder(loader, seed=7)
    before = digest_rng()
    epochs = [of_epoch(order, epoch, 3) for epoch in range(3)]
    assert digest_rng() == before
    assert (epochs[0] != epochs[1] != epochs[2]) is (name not in ("sequential", "a list"))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("shares", [1, 2, 3, 5])
def test_all_shares_together_take_an_epoch_once(name: str, shares: int) -> None:
    order = SamplerOrder(WHOLE[name](), seed=7)
    for epoch in range(3):
        steps = of_epoch(order, epoch, shares)
        assert all(len({len(taken) for taken in step}) == 1 for step in steps), "all ranks have equally many"
        dealt = flat(steps)
        assert dealt[SIZE:] == dealt[: len(dealt) - SIZE], "the begin of the epoch fills its last round"
        assert sorted(dealt[:SIZE]) == list(range(SIZE)) and len(dealt) - SIZE < shares
    assert order.steps_per_epoch(shares) == -(-len(WHOLE[name]()) // shares)


@settings(deadline=None)
@given(size=st.integers(1, 80), batch=st.integers(1, 7), shares=st.integers(1, 6), drop_last=st.booleans())
def test_what_is_left_of_an_epoch_is_dealt_or_dropped(size: int, batch: int, shares: int, drop_last: bool) -> None:
    loader = DataLoader(Numbers(size), batch_size=batch, drop_last=drop_last)
    order = SamplerOrder(loader, seed=1)
    if drop_last and size < batch * shares:
        with pytest.raises(ProtectError, match=f"yields {size} samples, fewer than the {batch * shares}"):
            order.take(0, 0, shares)
        return
    dealt = flat(of_epoch(order, 1, shares))
    if drop_last:
        assert dealt == list(range(size - size % (batch * shares)))
        assert order.steps_per_epoch(shares) == len(loader) // shares
    else:
        assert dealt[:size] == list(range(size)) and len(dealt) - size < shares


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_distributed_sampler_is_followed_to_the_letter(drop_last: bool, shuffle: bool) -> None:
    def loader_of(rank: int) -> "DataLoader[int]":
        sampler: DistributedSampler[int] = DistributedSampler(Numbers(), 3, rank, shuffle=shuffle, seed=11)
        return DataLoader(Numbers(), batch_size=3, sampler=sampler, drop_last=drop_last)

    order = SamplerOrder(loader_of(1), seed=5)
    for rank in range(3):
        plain = loader_of(rank)
        expected = []
        for epoch in range(2):
            plain.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            expected += [batch.tolist() for batch in plain]
        assert [order.take(step, rank, 3)[1] for step in range(2 * len(plain))] == expected
        assert order.steps_per_epoch(3) == len(plain)


def test_the_scripts_sampler_stays_as_it_was() -> None:
    sampler = IsToldItsEpoch(Numbers())
    generator = torch.Generator().manual_seed(4)
    shuffled = RandomSampler(Numbers(), generator=generator)
    for one in (sampler, shuffled):
        SamplerOrder(loader_with(one), seed=7).take(30, 0, 1)
    assert sampler.epoch == 0 and torch.equal(generator.get_state(), torch.Generator().manual_seed(4).get_state())


def test_own_batches_are_dealt_in_turns() -> None:
    own = [[0, 1], [2], [3, 4, 5], [6], [7, 8]]
    order = SamplerOrder(DataLoader(Numbers(), batch_sampler=own), seed=7)
    assert of_epoch(order, 0, 2) == [[[0, 1], [2]], [[3, 4, 5], [6]], [[7, 8], [0, 1]]]
    assert order.steps_per_epoch(2) == 3


def test_seeds_differ() -> None:
    one, two = (flat(of_epoch(SamplerOrder(loader_with(shuffle=True), seed=seed), 0, 1)) for seed in (1, 2))
    assert one != two and sorted(one) == sorted(two)


# -- ranks that a sampler knows ---------------------------------------------------------------------------------------


class Strided(Sampler[int]):
    """Divides its samples itself, by attributes with other names. Can have made up its mind when it was made."""

    def __init__(self, rank: int, early: bool = False) -> None:
        self.rank, self.world_size = rank, 2
        self._early = list(range(rank, SIZE, 2)) if early else None

    def __iter__(self) -> Iterator[int]:
        return iter(self._early or range(self.rank, SIZE, self.world_size))

    def __len__(self) -> int:
        return SIZE // 2


def test_a_sampler_with_a_rank_of_its_own_is_not_divided_again() -> None:
    order = SamplerOrder(loader_with(Strided(1)), seed=7)
    assert order.replicas == 2 and order.objection(2) is None
    assert order.take(0, 1, 2)[1] == [1, 3, 5, 7] and order.take(0, 0, 2)[1] == [0, 2, 4, 6]


def test_a_sampler_whose_other_shares_cannot_be_told_says_so() -> None:
    order = SamplerOrder(loader_with(Strided(1, early=True)), seed=7)
    assert order.take(0, 1, 2)[1] == [1, 3, 5, 7]
    assert "does not follow its attribute rank" in str(order.objection(2))


def test_a_sampler_for_another_number_of_ranks_is_read_as_it_is() -> None:
    order = SamplerOrder(loader_with(Strided(1)), seed=7)
    assert order.take(0, 3, 4)[1] == [1, 3, 5, 7]
    assert "among 2 ranks, and there are 4 shares" in str(order.objection(4))


# -- what cannot be told ----------------------------------------------------------------------------------------------


class Counted(Sampler[int]):
    def __init__(self, says: int, yields: int) -> None:
        self.says, self.yields = says, yields

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.yields))


@pytest.mark.parametrize(
    ("yields", "expected", "words"),
    [(5, [0, 1, 2, 3, 4, 0, 1, 2], "yields 5 items"), (10**9, [0, 1, 2, 3, 4, 5, 6, 7], "yields more items")],
)
def test_another_length_than_it_says_is_said_once(yields: int, expected: list[int], words: str) -> None:
    said: list[str] = []
    order = SamplerOrder(loader_with(Counted(8, yields)), seed=7, say=said.append)
    assert flat(of_epoch(order, 0, 1)) == flat(of_epoch(order, 1, 1)) == expected
    assert len(said) == 1 and words in said[0]


class WithoutLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Uncopyable(HasItsOwnGenerator):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.endless = (number for number in range(10**6))

    def __iter__(self) -> Iterator[int]:
        return iter([next(self.endless) % (SIZE - 1) for _ in range(SIZE)])


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (WithoutLength(), "has no len.*StatefulDataLoader"),
        (Uncopyable(Numbers()), "set_epoch"),
        ([], "yields 0 samples"),
        (Counted(8, 0), "yields nothing"),
    ],
)
def test_what_has_no_order_is_refused(sampler: Any, words: str) -> None:
    with pytest.raises(ProtectError, match=words):
        SamplerOrder(loader_with(sampler), seed=7).take(0, 0, 1)


def test_a_sequential_sampler_of_the_scripts_own_is_no_stranger() -> None:
    assert not SamplerOrder(loader_with(SequentialSampler(Numbers())), seed=7).is_own
    assert SamplerOrder(loader_with(IsToldItsEpoch(Numbers())), seed=7).is_own
