"""Random transforms in worker processes: a replacement's workers draw the same, although they have made less before."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import understudy
from understudy.training.positions import Positions
from understudy.training.rewinding import Rewinding
from understudy.training.rng import derived_seed, seed_all

LENGTH = 24


class Noisy(Dataset[torch.Tensor]):
    name = "noisy"

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.tensor([float(index), random.random(), np.random.rand(), torch.rand(1).item()])


def seed(epoch: int, place: int | None) -> None:
    seed_all(derived_seed(5, epoch, 0 if place is None else 1 + place))


def rewinding(dataset: Any, workers: int) -> Rewinding:
    return Rewinding(DataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers), seed)


def with_positions(dataset: Any, workers: int) -> tuple[Rewinding, Positions]:
    loader: Any = StatefulDataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers)
    positions = Positions(loader)
    return Rewinding(loader, seed, positions.begin, positions), positions


def rest_of_second_epoch(loader: Rewinding, used_up: int) -> torch.Tensor:
    list(loader)
    found = iter(loader)
    for _ in range(used_up):
        next(found)
        loader.committed()
    return torch.cat(list(found))


def read_by(heir: Rewinding, used_up: int) -> torch.Tensor:
    """In the second epoch."""
    heir.load_state_dict({"epoch": 1, "place": used_up, "since": [1, used_up]})
    heir.go_to_last_commit()
    return torch.cat(list(heir))


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_replacement_draws_the_same(workers: int) -> None:
    lost = rewinding(understudy.Seeded(Noisy()), 2 if workers else 0)
    expected = rest_of_second_epoch(lost, 5)
    found = read_by(rewinding(understudy.Seeded(Noisy()), workers), 5)
    assert torch.equal(expected, found), "how many workers there are does not matter"


def test_without_it_the_place_in_a_workers_stream_matters() -> None:
    lost = rewinding(Noisy(), 2)
    expected = rest_of_second_epoch(lost, 5)
    assert not torch.equal(expected, read_by(rewinding(Noisy(), 3), 5))


def test_epochs_and_samples_differ() -> None:
    loader = rewinding(understudy.Seeded(Noisy()), 2)
    first, second = torch.cat(list(loader)), torch.cat(list(loader))
    assert len({*first[:, 3].tolist(), *second[:, 3].tolist()}) == 2 * LENGTH


@pytest.mark.parametrize("workers", [0, 2])
def test_with_a_loader_that_knows_its_position(workers: int) -> None:
    lost, known = with_positions(understudy.Seeded(Noisy()), workers)
    expected = rest_of_second_epoch(lost, 5)
    heir, its = with_positions(understudy.Seeded(Noisy()), workers)
    its.load_state_dict(known.state_dict())
    assert torch.equal(expected, read_by(heir, 5))


def test_it_is_the_dataset() -> None:
    seeded = understudy.Seeded(Noisy())
    assert len(seeded) == LENGTH and seeded.name == "noisy"
    assert [item[0].item() for item in seeded.__getitems__([3, 1])] == [3.0, 1.0]
    with pytest.raises(AttributeError):
        _ = seeded.nothing
