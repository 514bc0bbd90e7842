"""The user's handle without services behind it: plain python, a world of one."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import understudy
from understudy.errors import ProtectError, SettingsError, UsageError


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[understudy.Job]:
    for name in ("RANK", "WORLD_SIZE", "UNDERSTUDY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    yield understudy.join(seed=3)
    dist.destroy_process_group()


def test_a_world_of_one(job: understudy.Job) -> None:
    assert (job.rank, job.local_rank, job.world_size, job.protected, job.is_joiner) == (0, 0, 1, False, False)
    assert dist.is_initialized() and dist.get_world_size() == 1
    dist.all_reduce(torch.ones(1))


def batch_of(step: int, _rank: int, _world_size: int) -> torch.Tensor:
    return torch.full((1, 2), float(step))


def test_every_body_runs_once_and_commits(job: understudy.Job) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.protect(model=model, optimizer=optimizer, data=batch_of)
    seen: list[tuple[int, float]] = []
    for step in job.steps(3):
        assert not step.committed
        with step:
            batch = step.batch()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert step.committed and step.attempt == 0 and not step.rehearsing
        seen.append((step.number, batch[0, 0].item()))
    assert seen == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_random_numbers_are_a_function_of_the_step(job: understudy.Job) -> None:
    drawn = []
    for step in job.steps(3):
        with step:
            drawn.append(torch.rand(1).item())
        torch.rand(step.number)  # what happens between steps has no influence
    dist.destroy_process_group()
    again = []
    for step in understudy.join(seed=3).steps(3):
        with step:
            again.append(torch.rand(1).item())
    assert drawn == again and len(set(drawn)) == 3


def test_a_loop_can_be_left(job: understudy.Job) -> None:
    for step in job.steps(10):
        with step:
            pass
        if step.number == 1:
            break
    assert step.committed


def test_an_error_of_the_body_comes_out(job: understudy.Job) -> None:
    step = next(job.steps(2))
    with pytest.raises(ZeroDivisionError), step:
        raise ZeroDivisionError
    assert not step.committed


def test_a_loop_without_with_is_refused(job: understudy.Job) -> None:
    steps = job.steps(3)
    next(steps)
    with pytest.raises(UsageError, match="write `with step:`"):
        next(steps)


def test_a_second_loop_is_refused(job: understudy.Job) -> None:
    for step in job.steps(1):
        with step:
            pass
    with pytest.raises(UsageError, match="looped over once"):
        job.steps(1)


def test_protecting_after_the_loop_has_begun_is_refused(job: understudy.Job) -> None:
    job.steps(1)
    with pytest.raises(UsageError, match="before the loop"):
        job.protect(model=nn.Linear(1, 1))


def test_a_batch_without_data_is_refused(job: understudy.Job) -> None:
    with pytest.raises(UsageError, match="protect\\(data="):
        next(job.steps(1)).batch()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"save": lambda _: None}, "both save= and load="),
        ({"load": lambda _: None}, "both save= and load="),
        ({"counter": 3}, "counter is a int"),
        ({"data": 7}, "data is a int"),
        ({"model": "net"}, "model is a str"),
    ],
)
def test_what_cannot_be_protected_is_named(job: understudy.Job, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtectError, match=words):
        job.protect(**wrong)


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_SOCKET", "/nowhere")
    with pytest.raises(SettingsError, match="UNDERSTUDY_MEMBER"):
        understudy.join()


def test_the_package_knows_its_names() -> None:
    assert understudy.Batches.__name__ == "Batches"
    with pytest.raises(AttributeError, match="no attribute 'leave'"):
        _ = understudy.leave


@pytest.mark.processes
@pytest.mark.parametrize("leave_at", [1, 3], ids=["break", "to the end"])
def test_the_workers_of_a_loader_end_with_the_loop(
    job: understudy.Job, capsys: pytest.CaptureFixture[str], leave_at: int
) -> None:
    dataset = TensorDataset(torch.arange(6.0))
    job.protect(data=DataLoader(dataset, batch_size=2, num_workers=1, generator=torch.Generator()))
    seen = []
    for step in job.steps(3):
        with step:
            seen += step.batch()[0].tolist()
        assert len(multiprocessing.active_children()) == 1
        if step.number == leave_at:
            break
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0][: 2 + 2 * leave_at] and multiprocessing.active_children() == []
    assert capsys.readouterr().err.count("understudy: the generator= of the DataLoader is not used") == 1


def test_an_optimizer_that_hides_its_state_in_another_one_is_refused(job: understudy.Job) -> None:
    model = nn.Linear(2, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer.optim = torch.optim.Adam(model.parameters())  # type: ignore[attr-defined]
    with pytest.raises(ProtectError, match="keeps its state in an optimizer inside of it"):
        job.protect(model=model, optimizer=outer)
