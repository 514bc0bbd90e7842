"""Batches of every make are cut along their samples, or refused with a reason."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from understudy.errors import UsageError
from understudy.training.data.step_data import Batches, FunctionData
from understudy.training.degraded.slicing import cut, length, slice_batch

Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    name: str


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.arange(5), torch.arange(1, 3)),
        (np.arange(5), np.arange(1, 3)),
        ([torch.arange(5), 7], [torch.arange(1, 3), 7]),
        ((torch.arange(5), ["a", "b", "c", "d", "e"]), (torch.arange(1, 3), ["b", "c"])),
        ({"x": {"y": torch.arange(5)}, "scale": torch.tensor(2.0)}, {"x": {"y": torch.arange(1, 3)}, "scale": 2.0}),
        (OrderedDict(x=torch.arange(5)), OrderedDict(x=torch.arange(1, 3))),
        (UserDict(x=torch.arange(5)), UserDict(x=torch.arange(1, 3))),
        (Pair(torch.arange(5), None), Pair(torch.arange(1, 3), None)),
        (Sample(torch.arange(5), "n"), Sample(torch.arange(1, 3), "n")),
    ],
)
def test_what_batches_are_made_of(batch: Any, expected: Any) -> None:
    found = slice_batch(batch, range(1, 3), length(batch))
    assert type(found) is type(batch)
    assert str(found) == str(expected) or (isinstance(batch, dict) and str(found["x"]) == str(expected["x"]))


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ((torch.zeros(5), torch.zeros(4)), "4 and 5 entries"),
        ({"scale": torch.tensor(1.0)}, "no tensor with samples"),
        ((torch.zeros(5), ["a", "b"]), "a list of 2 values"),
        ((torch.zeros(5), object()), "a object cannot be sliced"),
    ],
)
def test_refusals(batch: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        slice_batch(batch, range(1, 3), length(batch))


def test_a_slice_shares_the_memory_of_its_batch() -> None:
    batch = torch.zeros(4, 2)
    slice_batch(batch, range(1, 3), 4).fill_(1)
    assert batch.sum() == 4


class Counting:
    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return torch.tensor([index])


def test_only_the_samples_that_are_needed_are_loaded() -> None:
    samples = Counting()
    data = Batches(samples, batch_size=5, shuffle=False)
    batch, size = cut(data, 1, 2, 4, lambda size: range(1, size - 1))
    assert size == 5 and batch.flatten().tolist() == samples.read == [31, 32, 33]


def test_a_function_is_asked_for_the_whole_batch() -> None:
    data = FunctionData(lambda step, rank, world: torch.arange(4) + 100 * step + 10 * rank + world)
    batch, size = cut(data, 1, 2, 3, lambda _: range(2, 4))
    assert size == 4 and batch.tolist() == [125, 126]
