"""The script's DataLoader once more, asked for its batches by task instead of by epoch.

Dataset, collate function, worker processes, prefetching, pinned memory, timeout and start method are the script's. Only
the order is ours: a task names the samples of one batch, and the seed of the random streams with which a worker makes
it. So a batch is the same whichever worker makes it, and whatever that worker made before.

Worker processes are started once and live until `close`: another place in the order (`open`) only sends them other
tasks. They die with the process that started them.

Knows torch's DataLoader. Does not know steps and shares. Called by `step_loader`.
"""

import dataclasses
import multiprocessing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from understudy.foundation.parenthood import die_with
from understudy.training.rng import seed_all


class Task(NamedTuple):
    """`key`: what the dataset is asked for; a list of samples, or a single thing where the script does not batch.
    `seed`: None leaves the random streams alone, for a batch that is made inside of a step."""

    key: Any
    epoch: int
    seed: int | None


class TaskDataset:
    """What the DataLoader takes for its dataset. Gives the same samples as the script's."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._epoch = -1

    def __getitems__(self, task: Task) -> list[Any]:
        self._begin(task)
        if getattr(self.dataset, "__getitems__", None):
            samples: list[Any] = self.dataset.__getitems__(task.key)
            return samples
        return [self.dataset[number] for number in task.key]

    def __getitem__(self, task: Task) -> Any:
        self._begin(task)
        return self.dataset[task.key]

    def _begin(self, task: Task) -> None:
        if task.epoch != self._epoch:
            self._epoch = task.epoch
            if callable(getattr(self.dataset, "set_epoch", None)):  # the script cannot reach a worker's copy
                self.dataset.set_epoch(task.epoch)
        if task.seed is not None:
            seed_all(task.seed)  # the collate function draws from these streams too


class _Tasks:
    """Stands where the DataLoader expects its sampler."""

    def __init__(self) -> None:
        self.pending: Iterator[Task] = iter(())

    def __iter__(self) -> Iterator[Task]:
        return self.pending


class TaskLoader:
    """`workers`: how many processes make batches; with none they are made where they are asked for."""

    def __init__(self, loader: "DataLoader[Any]", workers: int, seed: int) -> None:
        self._workers = workers
        self._tasks = _Tasks()
        self._wanted: deque[Task] = deque()
        self._loader: DataLoader[Any] | None = _rebuilt(loader, self._tasks, workers, seed)
        self._iterator: Iterator[Any] | None = None

    def open(self, tasks: Iterable[Task]) -> None:
        """From now on `next` gives the batches of these tasks. What was prefetched for others is dropped."""
        assert self._loader is not None, "it is closed"
        self._tasks.pending = iter(tasks)
        self._iterator = iter(self._loader)

    def next(self) -> Any:
        assert self._iterator is not None, "open it first"
        return next(self._iterator)

    def make(self, task: Task) -> Any:
        """The batch of one task. Workers prefetch nothing after it."""
        self._wanted.clear()
        self._wanted.append(task)
        if self._workers or self._iterator is None:
            self.open(self._take_wanted())
        return self.next()

    def _take_wanted(self) -> Iterator[Task]:
        while self._wanted:
            yield self._wanted.popleft()

    def close(self) -> None:
        """End the workers."""
        if self._workers and self._iterator is not None:
            # torch does it when nothing refers to the iterator any more; the traceback of an error may do so for long
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]
        self._iterator = self._loader = None


def _rebuilt(loader: "DataLoader[Any]", tasks: _Tasks, workers: int, seed: int) -> "DataLoader[Any]":
    batched: dict[str, Any] = {"batch_sampler": tasks}
    single: dict[str, Any] = {"batch_size": None, "sampler": tasks}
    processes: dict[str, Any] = {
        "worker_init_fn": partial(_begin_worker, loader.worker_init_fn),
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": True,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too many workers the script's own loader has warned
        return DataLoader(
            TaskDataset(loader.dataset),  # type: ignore[arg-type]
            **(single if loader.batch_sampler is None else batched),
            num_workers=workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            pin_memory_device=loader.pin_memory_device,
            timeout=loader.timeout,
            generator=torch.Generator().manual_seed(seed),  # torch would draw from the process's stream otherwise
            **(processes if workers else {}),
        )


def _begin_worker(initialise: Callable[[int], None] | None, worker: int) -> None:
    parent = multiprocessing.parent_process()  # and not getppid(): it may be dead already, and another in its place
    if parent is not None and parent.pid is not None:
        die_with(parent.pid)
    info = get_worker_info()
    assert info is not None and isinstance(info.dataset, TaskDataset)
    torch_worker._worker_info = dataclasses.replace(info, dataset=info.dataset.dataset)
    if initialise is not None:
        initialise(worker)
