"""The script's own DataLoader, with and without workers: the batch of a step is the same, whoever makes it and when."""

import contextlib
import multiprocessing
import os
import pickle
import random
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from understudy.training.data.step_data import as_step_data, digest_of_samples
from understudy.training.data.step_loader import StepLoader
from understudy.training.data.task_loader import Task, TaskLoader
from understudy.training.degraded.slicing import cut

workers_too = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
needs_workers = pytest.mark.processes


class Augmented(Dataset[torch.Tensor]):
    """Every stream is drawn from, as transforms do. Remembers who made a sample."""

    def __init__(self, size: int = 24) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> torch.Tensor:
        chance = [torch.rand(1).item(), random.random(), float(np.random.rand())]
        return torch.tensor([float(number), *chance, float(os.getpid())], dtype=torch.float64)


class Bulk(Augmented):
    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        return [torch.tensor([float(number), float(len(numbers)), os.getpid()]) for number in numbers]


@pytest.fixture
def load() -> Iterator[Any]:
    """Makes step loaders, and ends their workers."""
    made: list[StepLoader] = []

    def make(dataset: Any = None, workers: int = 0, share: tuple[int, int] = (1, 2), **options: Any) -> StepLoader:
        dataset = Augmented() if dataset is None else dataset
        options = {"batch_size": 3, **options}
        if options["batch_size"] is not None and "sampler" not in options:
            options["sampler"] = DistributedSampler(dataset, share[1], share[0], seed=2)
        data = as_step_data(DataLoader(dataset, num_workers=workers, **options), seed=5)
        assert isinstance(data, StepLoader)
        made.append(data)
        return data

    yield make
    for data in made:
        data.close()
    assert multiprocessing.active_children() == []


def content(batch: torch.Tensor) -> torch.Tensor:
    return batch[:, :-1]


def makers(batch: torch.Tensor) -> set[float]:
    return set(batch[:, -1].tolist())


def seeded(step: int) -> None:
    random.seed(step), np.random.seed(step), torch.manual_seed(step)


def read(data: StepLoader, steps: range) -> list[torch.Tensor]:
    seen = []
    for step in steps:
        seeded(step)  # as a step does
        seen.append(content(data.batch(step, 1, 2)))
    return seen


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@workers_too
def test_another_process_gets_the_same_batches_from_any_step_on(load: Any, workers: int) -> None:
    expected = read(load(workers=workers), range(12))
    for first in (11, 5):
        assert same(read(load(workers=workers), range(first, 12)), expected[first:])


@needs_workers
def test_how_many_workers_there_are_has_no_influence(load: Any) -> None:
    one, three = (load(workers=number, prefetch_factor=3) for number in (1, 3))
    assert same(read(one, range(9)), read(three, range(9)))


@needs_workers
def test_batches_are_made_by_workers_alone(load: Any) -> None:
    """A file that the dataset opened in this process would be shared with all workers that are started later."""
    data = load(workers=2)
    batches = [data.rehearse(0, 1, 2), *(data.batch(step, 1, 2) for step in range(3)), data.batch(2, 1, 2)]
    batches += [data.batch(3, 0, 2), data.part(3, 0, 2, range(1, 3))]
    assert all(float(os.getpid()) not in makers(batch) for batch in batches)


@workers_too
def test_samples_are_those_of_the_plain_loader(load: Any, workers: int) -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(Augmented(), 2, 1, seed=2)
    plain = DataLoader(Augmented(), batch_size=3, sampler=sampler)
    expected = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        expected += [batch[:, 0] for batch in plain]
    data = load(workers=workers)
    seen = [data.batch(step, 1, 2)[:, 0] for step in range(2 * len(plain))]
    assert same(seen, expected)
    assert [data.sample_ids(step, 1, 2) for step in range(8)] == [batch.long().tolist() for batch in seen[:8]]


@workers_too
def test_a_step_that_runs_again_gets_its_batch_unchanged(load: Any, workers: int) -> None:
    expected = read(load(workers=workers), range(6))
    data = load(workers=workers)
    for step in range(6):
        for _attempt in range(3 if step in (2, 5) else 1):
            seeded(step)
            batch = data.batch(step, 1, 2)
            assert torch.equal(content(batch), expected[step])
            batch.mul_(100)


@workers_too
def test_going_back_and_leaving_steps_out(load: Any, workers: int) -> None:
    expected = read(load(workers=workers), range(40))
    data = load(workers=workers)
    for step in (0, 1, 2, 3, 1, 2, 3, 4, 6, 7, 10, 39, 0):
        assert same(read(data, range(step, step + 1)), [expected[step]]), step


@needs_workers
def test_prefetched_batches_survive_a_retry_and_batches_of_other_shares(load: Any) -> None:
    data = load(workers=2)
    ahead = [data.batch(step, 1, 2) for step in range(2)]
    data.batch(1, 1, 2), data.batch(1, 0, 2)
    aside = multiprocessing.active_children()
    ahead += [data.batch(step, 1, 2) for step in range(2, 6)]
    assert len(set().union(*map(makers, ahead))) == 2, "the same two workers as before"
    assert len(aside) == 3 and set(multiprocessing.active_children()) == set(aside)


@needs_workers
def test_a_rehearsal_starts_the_workers_that_go_on_elsewhere(load: Any) -> None:
    expected = read(load(workers=2), range(9))
    data = load(workers=2)
    assert torch.equal(content(data.rehearse(0, 1, 2)), expected[0])
    assert torch.equal(content(data.rehearse(0, 1, 2)), expected[0])
    started = {child.pid for child in multiprocessing.active_children()}
    assert same(read(data, range(7, 9)), expected[7:])
    assert {child.pid for child in multiprocessing.active_children()} >= started and len(started) >= 2


@workers_too
def test_the_batch_of_another_share_can_be_made_and_divided(load: Any, workers: int) -> None:
    own, other = load(workers=workers), load(workers=workers, share=(0, 2))
    own.batch(4, 1, 2)
    seeded(4)
    expected = content(other.batch(4, 0, 2))
    seeded(4)
    assert torch.equal(content(own.batch(4, 0, 2)), expected)
    part, size = cut(own, 4, 0, 2, lambda size: range(1, size))
    assert size == 3 and part[:, 0].tolist() == expected[1:, 0].tolist()


@needs_workers
def test_loading_leaves_the_random_streams_of_the_step_alone(load: Any) -> None:
    data = load(workers=2)
    seeded(1)
    data.rehearse(0, 1, 2), data.batch(3, 1, 2), data.batch(3, 1, 2), data.batch(4, 1, 2)
    drawn = torch.rand(1).item(), random.random(), np.random.rand()
    seeded(1)
    assert drawn == (torch.rand(1).item(), random.random(), np.random.rand())


def test_without_workers_a_batch_draws_from_the_streams_of_the_step(load: Any) -> None:
    data = load()
    seeded(1)
    batch = data.batch(0, 1, 2)
    after = torch.rand(1).item()
    seeded(1)
    assert batch[:, 1].tolist() == [torch.rand(1).item() for _ in range(3)] and after == torch.rand(1).item()
    assert makers(batch) == {float(os.getpid())}


# -- what the script asked its loader for -----------------------------------------------------------------------------


@workers_too
def test_the_datasets_own_way_to_give_many_samples_is_used(load: Any, workers: int) -> None:
    assert load(Bulk(), workers).batch(0, 1, 2)[:, 1].tolist() == [3, 3, 3]


class Epochs(Augmented):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([self.epoch, number])


@workers_too
def test_a_dataset_is_told_its_epoch_where_it_is_read(load: Any, workers: int) -> None:
    data = load(Epochs(), workers)
    assert [data.batch(step, 1, 2)[0, 0].item() for step in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def initialise(offset: int, worker: int) -> None:
    info = get_worker_info()
    assert info is not None and isinstance(info.dataset, Opened) and info.id == worker
    info.dataset.offset = offset


class Opened(Augmented):
    offset: int

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number + self.offset])


def masked(samples: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.stack(samples) * (torch.rand(len(samples), 1) < 0.5)


def test_workers_may_be_started_from_nothing() -> None:
    """What they are given can be pickled; it takes long to start one."""
    script = DataLoader(Opened(), num_workers=1, worker_init_fn=partial(initialise, 1), multiprocessing_context="spawn")
    loader = TaskLoader(script, 1, 0)._loader
    assert loader is not None and loader.multiprocessing_context is script.multiprocessing_context
    pickle.dumps((loader.dataset, loader.worker_init_fn, loader.collate_fn, Task([1], 0, 7)))


@needs_workers
def test_workers_begin_as_the_script_wants(load: Any) -> None:
    data = load(Opened(), 2, worker_init_fn=partial(initialise, 1000), multiprocessing_context="fork", timeout=60)
    assert (data.batch(0, 1, 2).flatten() - 1000).tolist() == data.sample_ids(0, 1, 2)
    assert (data.batch(0, 1, 2).flatten() - 1000).tolist() == data.sample_ids(0, 1, 2), "when the step runs again, too"


@needs_workers
def test_what_a_collate_function_draws_is_a_function_of_the_step(load: Any) -> None:
    one, other = (load(workers=number, collate_fn=masked) for number in (1, 2))
    expected = [one.batch(step, 1, 2)[:, :-1] for step in range(6)]
    assert same([other.batch(step, 1, 2)[:, :-1] for step in (5, 2, 2)], [expected[step] for step in (5, 2, 2)])


@workers_too
def test_a_loader_that_does_not_batch(load: Any, workers: int) -> None:
    data = load(workers=workers, batch_size=None, shuffle=True)
    ids = [data.sample_ids(step, share, 2)[0] for step in range(12) for share in range(2)]
    assert sorted(ids) == list(range(24))
    assert [data.batch(step, 1, 2)[0].item() for step in range(12)] == ids[1::2]
    assert cut(data, 0, 0, 2, range)[0][0].item() == ids[0], "nobody can divide it"


class ByName(Dataset[str]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, name: str) -> str:
        return name.upper()


def test_samples_may_have_names(load: Any) -> None:
    data = load(ByName(), batch_size=2, sampler=["a", "b", "c", "d"], collate_fn=list)
    assert data.batch(0, 1, 2) == ["C", "D"]
    digests = {digest_of_samples(data, 0, share, 2) for share in range(2)}
    assert len(digests) == 2 and None not in digests


class Plain(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(Augmented(), generator=torch.Generator()), "generator="),
        (DataLoader(Augmented(), num_workers=2, in_order=False), "in_order"),
        (Plain(Augmented()), "__iter__ of Plain"),
    ],
)
def test_what_is_not_kept_is_said(loader: "DataLoader[Any]", words: str) -> None:
    said: list[str] = []
    as_step_data(loader, seed=0, say=said.append)
    assert len(said) == 1 and words in said[0]


@pytest.mark.parametrize(
    ("sampler", "shares", "words"),
    [
        (None, 2, ""),
        (DistributedSampler(Augmented(), 2, 0), 2, ""),
        (DistributedSampler(Augmented(), 2, 0), 4, "among 2 ranks, and this job has 4 shares.*share="),
    ],
)
def test_what_may_be_meant_otherwise_is_said_when_the_loop_begins(sampler: Any, shares: int, words: str) -> None:
    said: list[str] = []
    data = as_step_data(DataLoader(Augmented(), sampler=sampler), seed=0, say=said.append)
    assert isinstance(data, StepLoader)
    data.begin(10, (0, shares))
    assert bool(said) == bool(words) and re.search(words, "".join(said))


# -- the life of workers ----------------------------------------------------------------------------------------------


@needs_workers
def test_workers_make_nothing_beyond_the_last_step_and_end_with_the_loop(load: Any, tmp_path: Path) -> None:
    class Tells(Augmented):
        def __getitem__(self, number: int) -> torch.Tensor:
            (tmp_path / str(number)).touch()
            return super().__getitem__(number)

    data = load(Tells(), 2)
    data.begin(3, (1, 2))
    for step in range(3):
        data.batch(step, 1, 2)
    data.close()
    assert {int(file.name) for file in tmp_path.iterdir()} == {
        n for step in range(3) for n in data.sample_ids(step, 1, 2)
    }
    assert multiprocessing.active_children() == []


@needs_workers
def test_a_worker_that_dies_is_an_error_that_names_it(load: Any) -> None:
    data = load(workers=2)
    data.batch(0, 1, 2)

    def kill_and_go_on() -> None:
        multiprocessing.active_children()[0].kill()  # torch raises once for each, at any later moment
        for step in range(1, 100):
            with contextlib.suppress(ConnectionError, EOFError):  # of a batch that was torn off with it
                data.batch(step, 1, 2)
            time.sleep(0.05)

    with pytest.raises(RuntimeError, match=r"DataLoader worker .*(killed by signal|exited unexpectedly)"):
        kill_and_go_on()


class Breaks(Augmented):
    def __getitem__(self, number: int) -> torch.Tensor:
        raise ValueError(f"sample {number} cannot be read")


@workers_too
def test_an_error_in_the_dataset_comes_through_and_hides_no_batch(load: Any, workers: int) -> None:
    data = load(Breaks(), workers)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"sample {data.sample_ids(0, 1, 2)[0]} cannot be read"):
            data.batch(0, 1, 2)


@needs_workers
def test_workers_die_with_the_process_that_started_them(load: Any) -> None:
    """At once, whatever they are doing; torch's own workers look every few seconds."""
    reading, writing = os.pipe()
    if (rank := os.fork()) == 0:
        data = load(workers=2)
        data.batch(0, 1, 2)
        pids = [child.pid for child in multiprocessing.active_children()]
        os.write(writing, repr(pids).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    workers = eval(os.read(reading, 1000))
    os.waitpid(rank, 0)
    deadline = time.monotonic() + 3
    while any(_lives(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(workers) == 2 and not any(_lives(pid) for pid in workers)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
