"""Random streams and loader positions go with the rank: through retries, and to a replacement."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.errors import ProtectError, TransferError, UsageError
from understudy.state.rank_local_files import RankLocalFiles
from understudy.training import rng
from understudy.training.data.stateful_loader import LoaderData
from understudy.training.data.step_data import as_step_data
from understudy.training.rank_local.state import RankLocalState


class Loader:
    """A loader that knows its position. It draws from torch's stream when an epoch begins, as real ones do."""

    def __init__(self, size: int = 5) -> None:
        self._size, self._place = size, 0
        self._order: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self._order:
            self._order = torch.randperm(self._size).tolist()
        while self._place < self._size:
            self._place += 1
            yield torch.tensor([self._order[self._place - 1]])
        self._order, self._place = [], 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "order": list(self._order)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._place, self._order = state_dict["place"], state_dict["order"]


def draw() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())


def seed(value: int) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def body(data: LoaderData, step: int) -> tuple[Any, ...]:
    return (*draw(), data.batch(step, 0, 1).item(), *draw())


class Rank:
    """One process that holds the rank: its streams are the test's own, so one lives at a time."""

    def __init__(self, folder: Path, joiner: bool) -> None:
        self.data = as_step_data(Loader(), seed=3)
        assert isinstance(self.data, LoaderData)
        self.own = RankLocalState(RankLocalFiles(str(folder), 1, 0), tracked=True, joiner=joiner)
        self.own.loader = self.data

    def step(self, number: int) -> tuple[Any, ...]:
        assert isinstance(self.data, LoaderData)
        self.own.begin(number)
        seen = body(self.data, number)
        self.own.arrive(number)
        return seen


def undisturbed_run(folder: Path, steps: int) -> list[tuple[Any, ...]]:
    seed(1)
    rank = Rank(folder, joiner=False)
    return [rank.step(number) for number in range(steps)]


def test_streams_come_back_as_they_were() -> None:
    seed(5)
    kept = rng.capture_streams()
    first = [draw() for _ in range(3)]
    rng.restore_streams(kept)
    assert [draw() for _ in range(3)] == first


def test_a_step_that_runs_again_sees_the_same_numbers_and_the_same_batch(tmp_path: Path) -> None:
    (tmp_path / "quiet").mkdir()
    expected = undisturbed_run(tmp_path / "quiet", 8)
    seed(1)
    rank = Rank(tmp_path, joiner=False)
    seen = []
    for number in range(8):
        if number in (3, 5):  # an attempt that is dropped
            rank.step(number)
        seen.append(rank.step(number))
    assert seen == expected


@pytest.mark.parametrize("arrived", [True, False], ids=["committed without it", "run again"])
def test_a_replacement_goes_on_where_the_rank_was(tmp_path: Path, arrived: bool) -> None:
    """It dies in step 6: after its arrival at the fence the step counts, before it the step is run again."""
    (tmp_path / "quiet").mkdir()
    expected = undisturbed_run(tmp_path / "quiet", 12)
    seed(1)
    rank = Rank(tmp_path, joiner=False)
    for number in range(6):
        rank.step(number)
    rank.own.begin(6)
    assert isinstance(rank.data, LoaderData)
    body(rank.data, 6)
    if arrived:
        rank.own.arrive(6)
    seed(99)  # another process
    replacement = Rank(tmp_path, joiner=True)
    first = 7 if arrived else 6
    assert [replacement.step(number) for number in range(first, 12)] == expected[first:]


def test_without_a_file_nothing_is_made_up(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="were not kept"):
        Rank(tmp_path, joiner=True).step(4)


def test_scripts_that_need_none_have_none(tmp_path: Path) -> None:
    own = RankLocalState(RankLocalFiles(str(tmp_path), 1, 0), tracked=False, joiner=True)
    own.begin(3)
    own.arrive(3)
    assert not own.exists and list(tmp_path.iterdir()) == []


def test_the_loader_leaves_the_stream_of_the_step_alone() -> None:
    data = LoaderData(Loader(), seed=3)
    seed(1)
    data.batch(0, 0, 1)
    first = draw()
    seed(1)
    assert draw() == first


def test_a_batch_has_a_number_of_its_own() -> None:
    data = LoaderData(Loader(), seed=3)
    numbers = []
    for step in range(4):
        data.batch(step, 0, 1)
        numbers.append(tuple(data.sample_ids(step, 0, 1)))
    assert len(set(numbers)) == 4 and data.sample_ids(0, 0, 1) == []


def test_an_empty_loader_is_refused() -> None:
    with pytest.raises(ProtectError, match="no batch"):
        LoaderData(Loader(size=0), seed=3).batch(0, 0, 1)


# -- bodies that change their batch in place --------------------------------------------------------------------------


class Changing(Rank):
    """Its body changes its batches from the step `first` on."""

    def __init__(self, folder: Path, first: int) -> None:
        super().__init__(folder, joiner=False)
        self.first = first

    def step(self, number: int) -> tuple[Any, ...]:
        seen = super().step(number)
        assert isinstance(self.data, LoaderData)
        if number >= self.first:
            self.data.batch(number, 0, 1).mul_(100)
        return seen


@pytest.mark.parametrize("first", [0, 5], ids=["always", "only later"])
def test_a_step_that_runs_again_gets_its_batch_unchanged(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quiet").mkdir()
    expected = undisturbed_run(tmp_path / "quiet", 12)
    went_back: list[Any] = []
    load = Loader.load_state_dict

    def count_and_load(loader: Loader, state: dict[str, Any]) -> None:
        went_back.append(state)
        load(loader, state)

    monkeypatch.setattr(Loader, "load_state_dict", count_and_load)
    seed(1)
    rank = Changing(tmp_path, first)
    for number in range(12):
        seen = [rank.step(number) for _attempt in range(3 if number in (1, 6, 9) else 1)]
        assert seen == [expected[number]] * len(seen)
    assert len(went_back) == (0 if first == 0 else 1), "once it is known, a copy is kept"


def test_a_loader_that_cannot_go_back_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loader, "load_state_dict", lambda *_: None)
    seed(1)
    rank = Changing(tmp_path, first=5)
    for number in range(6):
        rank.step(number)
    with pytest.raises(UsageError, match=r"x = x / 255 instead of x.div_\(255\)"):
        rank.step(5)


def test_the_ledger_has_the_digest_of_what_the_loader_gave() -> None:
    data = LoaderData(Loader(), seed=3)
    batch = data.batch(0, 0, 1)
    before = data.sample_ids(0, 0, 1)
    batch.mul_(100)
    assert data.sample_ids(0, 0, 1) == before != []


def test_nothing_is_read_twice_where_no_body_runs_again() -> None:
    data = LoaderData(Loader(), seed=3)
    data.protected = False
    data.batch(0, 0, 1)
    assert data.sample_ids(0, 0, 1) == []


def test_a_rank_whose_streams_cannot_be_kept_trains_on_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    own = RankLocalState(RankLocalFiles(str(tmp_path / "gone"), 1, 0), tracked=True, joiner=False, note=said.append)
    for step in range(3):
        own.begin(step)
        own.arrive(step)
    (text,) = said
    assert "could not be kept in shared memory: No such file or directory" in text and "Training goes on" in text
