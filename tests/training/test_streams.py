"""Iterable datasets with a shuffle buffer, or with a state that stays, are read on where they were.

The real ones are in claims/frameworks; the stand-in here behaves as they do.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import understudy
from understudy.training.data.stateful_loader import LoaderData
from understudy.training.data.step_data import as_step_data
from understudy.training.data.streams import is_read_again
from understudy.training.rewinding import Rewinding

LENGTH, BUFFER = 12, 4


class Examples:
    def __init__(self, ex_iterable: "Examples | None" = None, buffer_size: int | None = None) -> None:
        self.ex_iterable = ex_iterable
        if buffer_size is not None:
            self.buffer_size = buffer_size


class Stream(IterableDataset[int]):
    """As `datasets.IterableDataset`: a state without the buffer's content, which stays after it was put back."""

    def __init__(self, shuffled: bool) -> None:
        self._ex_iterable = Examples(Examples(), BUFFER) if shuffled else Examples(Examples())
        self._shuffled, self._epoch, self._place = shuffled, 0, 0
        self._starting: dict[str, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        starts_there = self._starting is not None and self._starting["epoch"] == self._epoch
        self._place = self._starting["place"] if starts_there and self._starting is not None else 0
        buffer, order = list[int](), random.Random(self._epoch)
        while self._place < LENGTH:
            self._place += 1
            buffer.append(100 * self._epoch + self._place - 1)
            if not self._shuffled or len(buffer) == BUFFER:
                yield buffer.pop(order.randrange(len(buffer)))
        yield from buffer

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._starting = dict(state)


def data_of(kind: str, shuffled: bool) -> LoaderData:
    stream = Stream(shuffled)
    loader: Any = {
        "bare": lambda: stream,
        "torch": lambda: DataLoader(stream, batch_size=None),
        "torchdata": lambda: StatefulDataLoader(stream, batch_size=None),
    }[kind]()  # type: ignore[no-untyped-call]
    found = as_step_data(loader, 5)
    assert isinstance(found, LoaderData)
    return found


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["bare", "torch", "torchdata"])
def test_a_replacement_reads_on_from_every_place(kind: str, shuffled: bool) -> None:
    data, states, expected = data_of(kind, shuffled), list[Any](), list[int]()
    for step in range(2 * LENGTH + 3):
        states.append(data.state_dict())
        expected.append(int(data.batch(step, 0, 1)))
    assert sorted(expected[LENGTH : 2 * LENGTH]) == list(range(100, 100 + LENGTH)), "epochs have numbers"
    for begun, state in enumerate(states):
        heir = data_of(kind, shuffled)
        heir.batch(0, 0, 1)  # in its rehearsal
        heir.load_state_dict(state)
        assert heir.state_dict() == state
        assert [int(heir.batch(step, 0, 1)) for step in range(begun, len(expected))] == expected[begun:]


@pytest.mark.parametrize(("workers", "shuffled", "again"), [(0, False, True), (0, True, True), (2, True, True)])
def test_windows_read_it_again_where_a_state_is_not_enough(workers: int, shuffled: bool, again: bool) -> None:
    loader: Any = StatefulDataLoader(Stream(shuffled), batch_size=None, num_workers=workers)
    assert is_read_again(loader) is again
    try:
        found = understudy.join().rewinding(loader)
    finally:
        dist.destroy_process_group()
    assert isinstance(found, Rewinding) and (found._positions is None) is again


def test_windows_put_other_states_back() -> None:
    assert not is_read_again(StatefulDataLoader(Stream(False), batch_size=None, num_workers=2))
    assert not is_read_again(StatefulDataLoader(range(8), batch_size=2))


def test_a_buffer_is_found_among_several_sources() -> None:
    stream = Stream(False)
    stream._ex_iterable.ex_iterables = [Examples(), Examples(Examples(buffer_size=3))]  # type: ignore[attr-defined]
    assert is_read_again(StatefulDataLoader(stream, batch_size=None, num_workers=2))
