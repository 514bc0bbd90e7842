"""Every sample of an epoch exactly once, the same batch for every attempt, and no order that cannot be computed."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from understudy.errors import ProtectError
from understudy.training.data.step_data import Batches, as_step_data


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> int:
        return number * 10


def epoch_of(batches: Batches, epoch: int, size: int, batch_size: int, world: int) -> list[int]:
    rounds = size // (batch_size * world)
    return [
        number
        for step in range(epoch * rounds, (epoch + 1) * rounds)
        for rank in range(world)
        for number in batches.sample_ids(step, rank, world)
    ]


@settings(deadline=None)
@given(
    size=st.integers(1, 200),
    batch_size=st.integers(1, 9),
    world=st.integers(1, 7),
    epoch=st.integers(0, 4),
    shuffle=st.booleans(),
)
def test_each_epoch_deals_every_sample_at_most_once_and_drops_less_than_a_round(
    size: int, batch_size: int, world: int, epoch: int, shuffle: bool
) -> None:
    batches = Batches(Numbers(size), batch_size=batch_size, shuffle=shuffle, seed=3)
    if size < batch_size * world:
        with pytest.raises(ProtectError, match=f"has {size} samples, fewer than the {batch_size * world}"):
            batches.sample_ids(0, 0, world)
        return
    dealt = epoch_of(batches, epoch, size, batch_size, world)
    assert len(dealt) == len(set(dealt)) == size - size % (batch_size * world)
    assert set(dealt) <= set(range(size))


def test_a_whole_epoch_is_dealt_once_whatever_the_world() -> None:
    for world in (1, 2, 3, 4, 6):
        batches = Batches(Numbers(24), batch_size=2, seed=1)
        assert sorted(epoch_of(batches, 0, 24, 2, world)) == list(range(24))


def test_the_order_does_not_depend_on_the_world() -> None:
    alone = epoch_of(Batches(Numbers(24), batch_size=12), 0, 24, 12, world=1)
    assert epoch_of(Batches(Numbers(24), batch_size=3), 0, 24, 3, world=4) == alone


def test_epochs_differ_and_so_do_seeds() -> None:
    batches = Batches(Numbers(60), batch_size=3, seed=1)
    first, second = epoch_of(batches, 0, 60, 3, 2), epoch_of(batches, 1, 60, 3, 2)
    assert first != second and sorted(first) == sorted(second)
    assert first != epoch_of(Batches(Numbers(60), batch_size=3, seed=2), 0, 60, 3, 2)
    assert epoch_of(Batches(Numbers(60), batch_size=3, shuffle=False), 1, 60, 3, 2) == list(range(60))


def test_a_step_that_runs_again_and_a_joiner_see_the_same_batch() -> None:
    batches, joiner = (Batches(Numbers(40), batch_size=4, seed=9) for _ in range(2))
    seen = [batches.batch(step, 1, 2).tolist() for step in range(12)]
    assert batches.batch(7, 1, 2).tolist() == seen[7]
    assert batches.batch(2, 1, 2).tolist() == seen[2]
    assert joiner.batch(11, 1, 2).tolist() == seen[11]


def test_dealing_draws_no_random_numbers() -> None:
    batches = Batches(Numbers(40), batch_size=4)
    before = torch.get_rng_state()
    batches.batch(0, 0, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_collate_function_is_used() -> None:
    batches = Batches(Numbers(8), batch_size=2, shuffle=False, collate=sum)
    assert batches.batch(1, 1, 2) == 60 + 70


# -- what protect(data=...) takes -------------------------------------------------------------------------------------


def test_a_plain_loader_is_dealt_in_order() -> None:
    data = as_step_data(DataLoader(Numbers(16), batch_size=2, collate_fn=list), seed=5)
    assert [data.batch(0, rank, 2) for rank in range(2)] == [[0, 10], [20, 30]]


def test_a_shuffled_loader_is_dealt_in_the_order_of_the_jobs_seed() -> None:
    loader = DataLoader(Numbers(16), batch_size=2, shuffle=True)
    one, two, three = as_step_data(loader, seed=5), as_step_data(loader, seed=5), as_step_data(loader, seed=6)
    ids = [list(data.sample_ids(3, 0, 2)) for data in (one, two)]
    assert ids[0] == ids[1]
    assert [list(one.sample_ids(step, 0, 1)) for step in range(8)] != [
        list(three.sample_ids(step, 0, 1)) for step in range(8)
    ]


def test_a_loader_gives_tensors_as_it_always_did() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0).reshape(3, 2)), batch_size=3)
    ours, theirs = as_step_data(loader, seed=0).batch(0, 0, 1), next(iter(loader))
    assert torch.equal(ours[0], theirs[0]) and type(ours) is type(theirs)


def test_a_function_of_the_step() -> None:
    data = as_step_data(lambda step, rank, world: (step, rank, world), seed=0)
    assert data.batch(4, 1, 2) == (4, 1, 2)
    places = [data.sample_ids(step, rank, 3)[0] for step in range(4) for rank in range(3)]
    assert places == list(range(12))


def test_own_data_is_taken_as_it_is() -> None:
    class Own:
        def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[int]:
            return [step, rank, world_size]

        def batch(self, step: int, rank: int, world_size: int) -> Any:
            return self.sample_ids(step, rank, world_size)

    own = Own()
    assert as_step_data(own, seed=0) is own


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(Stream(), batch_size=2), "IterableDataset.*StatefulDataLoader"),
        ([1, 2, 3], "data is a list"),
    ],
)
def test_an_order_that_cannot_be_computed_is_refused(data: Any, words: str) -> None:
    with pytest.raises(ProtectError, match=words):
        as_step_data(data, seed=0)
