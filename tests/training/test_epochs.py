"""Nested loops over epochs, and loops without a known end, in one process."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

import understudy
from understudy.errors import UsageError
from understudy.training.epochs import Epochs, OpenEnd
from understudy.training.job import Job
from understudy.training.steps import Step


@pytest.fixture
def job() -> Iterator[Job]:
    yield understudy.join(seed=1)
    dist.destroy_process_group()


def test_every_epoch_has_its_steps_and_an_end(job: Job) -> None:
    told: list[object] = []
    for epoch in job.epochs(3, steps_per_epoch=2):
        with epoch:
            for step in epoch.steps():
                with step:
                    told.append(step.number)
            told.append(f"end {epoch.number}")
    assert told == [0, 1, "end 0", 2, 3, "end 1", 4, 5, "end 2"]


def test_the_script_can_end_its_loop(job: Job) -> None:
    ends = []
    for epoch in job.epochs(3, steps_per_epoch=2):
        with epoch:
            for step in epoch.steps():
                with step:
                    pass
            ends.append(epoch.number)
            if epoch.number == 1:
                job.finish()
    assert ends == [0, 1]


def test_a_loop_without_a_total_goes_on_until_it_is_ended(job: Job) -> None:
    numbers = []
    for step in job.steps():
        with step:
            numbers.append(step.number)
        if step.number == 4:
            job.finish()
    assert numbers == [0, 1, 2, 3, 4]


def test_only_such_a_loop_can_be_ended(job: Job) -> None:
    for step in job.steps(1):
        with step:
            pass
        with pytest.raises(UsageError, match="without a total"):
            job.finish()


def test_an_epoch_is_entered_with_with(job: Job) -> None:
    epoch = next(iter(job.epochs(1, steps_per_epoch=1)))
    with pytest.raises(UsageError, match="with epoch:"):
        epoch.steps()


def test_where_epochs_end_must_be_known(job: Job) -> None:
    with pytest.raises(UsageError, match="steps_per_epoch="):
        job.epochs(1)


def test_several_batches_make_a_step(job: Job) -> None:
    job.protect(data=understudy.Batches(list(range(12)), batch_size=2, shuffle=False), batches_per_step=3)
    seen = []
    for epoch in job.epochs(1):
        with epoch:
            for step in epoch.steps():
                with step:
                    seen.append([batch.tolist() for batch in step.batches()])
    assert seen == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def steps_of(*numbers: int) -> Iterator[Step]:
    """As a protected loop yields them."""
    for number in numbers:
        yield Step(number, 0, lambda _: None, lambda _: None)


def run(epochs: Epochs) -> list[object]:
    told: list[object] = []
    for epoch in epochs:
        with epoch:
            for step in epoch.steps():
                with step:
                    told.append(step.number)
            told.append(f"end {epoch.number}")
    return told


def test_a_rank_that_joins_goes_to_the_epoch_of_the_others_and_runs_no_end_before() -> None:
    def steps() -> Iterator[Step]:
        rehearsal = Step(0, 0, lambda _: None, lambda _: None)
        rehearsal.anywhere = True
        yield rehearsal
        rehearsal.committed = False
        yield from steps_of(5, 6, 7)

    epochs = Epochs(steps(), 2, 4, OpenEnd(8))
    told: list[object] = []
    for epoch in epochs:
        with epoch:
            for step in epoch.steps():
                with step:
                    told.append(step.number)
                if step.anywhere:
                    step.committed = False
            told.append(f"end {epoch.number}")
    assert told == [0, 5, 6, 7, "end 1"]


def test_a_world_that_goes_back_runs_the_end_of_that_epoch_again() -> None:
    assert run(Epochs(steps_of(0, 1, 2, 3, 1, 2, 3), 2, 2, OpenEnd(4))) == [
        *(0, 1, "end 0", 2, 3, "end 1"),
        *(1, "end 0", 2, 3, "end 1"),
    ]


def test_a_rank_that_joins_when_all_is_done_runs_nothing() -> None:
    assert run(Epochs(steps_of(), 2, 2, OpenEnd(4))) == []
