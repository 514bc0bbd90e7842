"""The script's own DataLoader over a map-style dataset, read by the step: `protect(data=loader)`.

Which samples a batch has is in `sampler_order`, how it is made in `task_loader`.

Without worker processes a batch is made where the script asks for it, with the random streams of the step: a step that
runs again makes its batch again. With workers one sequence of steps is prefetched. The batch of a retried step, which
the body may have changed, and batches of other shares are made aside, by one more worker, so that what was prefetched
stays. The dataset is never read in this process then: a file that it opens lazily would be shared with every worker
that is forked later, and so would the place in that file.

Called by `step_data`, and by `job` for what a loader needs beyond a batch per step.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from understudy.errors import ProtectError
from understudy.training.data.sampler_order import SamplerOrder, Say
from understudy.training.data.task_loader import Task, TaskLoader
from understudy.training.rng import derived_seed

_WORKER = 0xDA7A  # makes the seeds of workers differ from those of steps
_NOWHERE = -1


class StepLoader:
    """The share that is asked for first is this rank's own."""

    def __init__(self, loader: "DataLoader[Any]", seed: int, say: Say = lambda _: None) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise ProtectError(
                "data is a DataLoader over an IterableDataset, whose position cannot be computed from the step. Use "
                "torchdata's StatefulDataLoader(dataset, batch_size=...), which knows its position; or a map-style "
                "dataset; or a function (step, rank, world_size) -> batch"
            )
        self._loader, self._seed, self._say = loader, seed, say
        self._order = SamplerOrder(loader, seed, say)
        self._total: int | None = None
        self._own: tuple[int, int] | None = None
        self._next = _NOWHERE  # the step whose batch `_ahead` gives next
        self._ahead: TaskLoader | None = None
        self._aside: TaskLoader | None = None
        for remark in _not_kept(loader):
            say(remark)

    # -- StepData -----------------------------------------------------------------------------------------------------

    def sample_ids(self, step: int, rank: int, world_size: int) -> Sequence[Any]:
        return _samples_in(self._task(step, rank, world_size).key)

    def batch(self, step: int, rank: int, world_size: int) -> Any:
        if not self._loader.num_workers:
            return self._make_aside(self._task(step, rank, world_size))
        self._own = self._own or (rank, world_size)
        runs_again = self._next != _NOWHERE and step == self._next - 1
        if (rank, world_size) != self._own or runs_again:
            return self._make_aside(self._task(step, rank, world_size))
        return self._prefetched(step)

    def part(self, step: int, rank: int, world_size: int, some: range) -> Any:
        """A batch of some of the samples of a share, by their places in its batch."""
        task = self._task(step, rank, world_size)
        samples = _samples_in(task.key)
        if task.key is not samples:  # a single thing that cannot be divided
            return self._make_aside(task)
        return self._make_aside(task._replace(key=samples[some.start : some.stop]))

    # -- for the job --------------------------------------------------------------------------------------------------

    def begin(self, total: int, share: tuple[int, int]) -> None:
        """The loop over the steps begins."""
        self._total = total
        if self._order.is_own and share[1] > 1:
            self._say(
                f"what the {self._order.kind} of the DataLoader yields is dealt among {share[1]} ranks. If it yields "
                "the samples of one rank only, let it say so: with attributes num_replicas and rank, as "
                "DistributedSampler has them"
            )
        if self._order.replicas not in (None, share[1]):
            self._say(
                f"the {self._order.kind} of the DataLoader divides its samples among {self._order.replicas} ranks, and "
                f"this job has {share[1]} shares. Every rank reads what its own sampler says; ranks that work on the "
                "same samples should say so: job.protect(..., share=(index, count))"
            )

    def rehearse(self, step: int, rank: int, world_size: int) -> Any:
        """A batch for a joiner's rehearsal. Workers are started for it and prefetch nothing: the joiner will go on at
        another step."""
        if not self._loader.num_workers:
            return self.batch(step, rank, world_size)
        self._own, self._next = (rank, world_size), _NOWHERE
        return self._workers_ahead().make(self._task(step, rank, world_size))

    def steps_per_epoch(self, shares: int) -> int:
        return self._order.steps_per_epoch(shares)

    def objection(self, shares: int) -> str | None:
        """Why no rank could work on the batch of another share, if so."""
        return self._order.objection(shares)

    def close(self) -> None:
        """The loop over the steps was left: no worker process stays."""
        for source in (self._ahead, self._aside):
            if source is not None:
                source.close()
        self._ahead = self._aside = None
        self._next = _NOWHERE

    # -- making batches -----------------------------------------------------------------------------------------------

    def _prefetched(self, step: int) -> Any:
        source = self._workers_ahead()
        in_reach = self._loader.num_workers * (self._loader.prefetch_factor or 0)
        place, self._next = self._next, _NOWHERE  # an error on the way leaves the place unknown
        if place == _NOWHERE or not 0 <= step - place <= in_reach:
            source.open(self._tasks_from(step))
            place = step
        for _ in range(place, step):  # steps whose body asked for no batch
            source.next()
        batch = source.next()
        self._next = step + 1
        return batch

    def _tasks_from(self, step: int) -> Iterator[Task]:
        assert self._own is not None
        steps = itertools.count(step) if self._total is None or step >= self._total else range(step, self._total)
        for number in steps:
            yield self._task(number, *self._own)

    def _make_aside(self, task: Task) -> Any:
        if self._aside is None:
            self._aside = TaskLoader(self._loader, min(1, self._loader.num_workers), self._seed_of(0, 0))
        return self._aside.make(task)

    def _workers_ahead(self) -> TaskLoader:
        if self._ahead is None:
            assert self._own is not None
            self._ahead = TaskLoader(self._loader, self._loader.num_workers, self._seed_of(0, self._own[0]))
        return self._ahead

    def _task(self, step: int, rank: int, world_size: int) -> Task:
        epoch, key = self._order.take(step, rank, world_size)
        if self._loader.batch_sampler is not None:
            key = list(key)
        return Task(key, epoch, self._seed_of(step, rank) if self._loader.num_workers else None)

    def _seed_of(self, step: int, rank: int) -> int:
        return derived_seed(self._seed ^ _WORKER, step, rank)


def _samples_in(key: Any) -> list[Any]:
    return key if isinstance(key, list) else [key]


def _not_kept(loader: "DataLoader[Any]") -> Iterator[str]:
    """What the script asked its loader for and does not get."""
    if loader.generator is not None or getattr(loader.sampler, "generator", None) is not None:
        yield (
            "the generator= of the DataLoader is not used: the order of its samples comes from "
            "understudy.join(seed=...), so that every process that holds a rank finds the same"
        )
    if loader.num_workers and not loader.in_order:
        yield "in_order=False of the DataLoader is not kept: which batch a step gets must not depend on quick workers"
    if type(loader).__iter__ is not DataLoader.__iter__:
        yield (
            f"the __iter__ of {type(loader).__name__} is not used: batches come from its dataset, sampler and "
            "collate_fn. What it does to them belongs into collate_fn or the body of the step"
        )
