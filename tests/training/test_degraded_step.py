"""Steps in parts, seen from one rank: the only one that is left of two."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.training.degraded_play import Case, StandIn
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from understudy.errors import StepAbandoned, UsageError
from understudy.foundation.ids import Generation
from understudy.training.job import Job
from understudy.training.steps import Step

SIZE = 4


def batch_of(step: int, share: int, _shares: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(10 * step + share))


class Alone:
    """A job of share 0 of 2 in a world of one. Degraded from step 1 on."""

    def __init__(self, folder: Path, make: Callable[[], nn.Module], **protect: Any) -> None:
        world = SimpleNamespace(rank=0, connections=SimpleNamespace(broken=lambda: False))
        self.member = StandIn(Case(ranks=1, absent=()), 0, str(folder), world)  # type: ignore[arg-type]
        self.errors: list[BaseException] = []
        self.member.errors.report = self._remember_error
        self.job = Job(
            rank=0,
            local_rank=0,
            world_size=2,
            seed=5,
            tracked=False,
            device=torch.device("cpu"),
            member=self.member,  # type: ignore[arg-type]
        )
        torch.manual_seed(1)
        self.plain = make()
        torch.manual_seed(1)
        self.model = DistributedDataParallel(make())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        protect.setdefault("data", batch_of)
        self.job.protect(model=self.model, optimizer=self.optimizer, share=(0, 2), **protect)

    def _remember_error(self, error: BaseException, _step: int | None) -> None:
        self.errors.append(error)

    def steps(self, total: int) -> Iterator[Step]:
        for step in self.job.steps(total):
            yield step
            if step.committed and step.number == 0:
                self.member.degraded.go_without([1])

    def gradient(self) -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def whole_gradient(self, step: int, data: Callable[[int, int, int], torch.Tensor] = batch_of) -> torch.Tensor:
        """Of both shares."""
        self.plain.zero_grad()
        for share in range(2):
            (self.plain(data(step, share, 2)).square().mean() / 2).backward()
        return torch.cat([p.grad.flatten() for p in self.plain.parameters() if p.grad is not None])


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore(), timeout=timedelta(seconds=20))
    yield
    dist.destroy_process_group()
    torch.set_default_dtype(before)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


def test_a_step_is_yielded_once_for_each_part(tmp_path: Path) -> None:
    alone = Alone(tmp_path, linear)
    seen = []
    for step in alone.steps(3):
        with step:
            alone.optimizer.zero_grad()
            alone.model(step.batch()).square().mean().backward()
            alone.optimizer.step()
        seen.append((step.number, step.attempt, step.partial, step.committed))
        if step.committed and step.number:
            torch.testing.assert_close(alone.gradient(), alone.whole_gradient(step.number), rtol=1e-13, atol=0)
    assert seen == [
        (0, 0, False, True),
        (1, 0, True, False),
        (1, 0, False, True),
        (2, 0, True, False),
        (2, 0, False, True),
    ]


def test_a_part_draws_the_random_numbers_of_the_absent_rank(tmp_path: Path) -> None:
    alone = Alone(tmp_path, linear)
    drawn: dict[tuple[int, bool], float] = {}
    for step in alone.steps(2):
        with step:
            value = torch.rand(1).item()
            alone.model(step.batch()).square().mean().backward()
            alone.optimizer.step()
            alone.optimizer.zero_grad()
        drawn[step.number, step.partial] = value
    alone.job._seed(1, 1)
    assert drawn[1, True] == torch.rand(1).item()
    alone.job._seed(1, 0)
    assert drawn[1, False] == torch.rand(1).item()


def test_a_fault_in_a_part_begins_the_step_again(tmp_path: Path) -> None:
    alone = Alone(tmp_path, linear)
    recovered: list[int] = []

    def recover(*_: Any) -> None:
        alone.member.status.control.abandoned = Generation(0)
        recovered.append(bodies)
        alone.member.degraded.go_without([1])

    alone.member.recovery.recover = recover
    bodies = 0
    for step in alone.steps(2):
        with step:
            bodies += 1
            alone.optimizer.zero_grad()
            loss = alone.model(step.batch()).square().mean()
            if bodies == 2:  # in the first part of step 1
                raise StepAbandoned("somebody was lost")
            loss.backward()
            if bodies == 4:  # in its last part
                raise StepAbandoned("somebody was lost")
            alone.optimizer.step()
        if bodies == 5:  # between two parts
            alone.member.status.control.abandoned = Generation(2)
        if bodies in (2, 4, 5):
            assert alone.member.status.holds == 1 and all(p.grad is None for p in alone.model.parameters())
    assert recovered == [2, 4, 5] and bodies == 7
    torch.testing.assert_close(alone.gradient(), alone.whole_gradient(1), rtol=1e-13, atol=0)
    assert not alone.errors


@pytest.mark.parametrize("size", [SIZE, 1, 7])
def test_microbatches_with_a_scaler_and_clipping(tmp_path: Path, size: int) -> None:
    """Of which a part may have fewer than the own batch; it then comes as far as the scaler."""

    def data(step: int, share: int, shares: int) -> torch.Tensor:
        return batch_of(step, share, shares, size=size if share else SIZE)

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    alone = Alone(tmp_path, linear, scaler=scaler, data=data)
    bodies = ends = 0
    for step in alone.steps(2):
        with step:
            bodies += 1
            batch = step.batch()
            for some in batch.tensor_split(min(2, len(batch))):
                loss = alone.model(some).square().mean() * (len(some) / len(batch))
                scaler.scale(loss).backward()
            ends += 1
            scaler.unscale_(alone.optimizer)
            nn.utils.clip_grad_norm_(alone.model.parameters(), 1e-3)
            gradient = alone.gradient()
            scaler.step(alone.optimizer)
            scaler.update()
            alone.optimizer.zero_grad()
    whole = alone.whole_gradient(1, data)
    assert (bodies, ends) == (3, 3 if size == 1 else 2)
    torch.testing.assert_close(gradient, whole * (1e-3 / (whole.norm() + 1e-6)), rtol=1e-12, atol=0)
    assert scaler.get_scale() == 4.0 * 2 * 2  # once per step


def test_statistics_follow_the_own_batch(tmp_path: Path) -> None:
    alone = Alone(tmp_path, lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)))
    for step in alone.steps(2):
        with step:
            alone.model(step.batch()).square().mean().backward()
            alone.optimizer.step()
            alone.optimizer.zero_grad()
    for number in range(2):
        alone.plain(batch_of(number, 0, 2))
    for mine, theirs in zip(alone.model.buffers(), alone.plain.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def train(alone: Alone, wrong: str, from_step: int) -> list[int]:
    """Returns the steps whose optimizer has stepped, as far as it came."""
    applied = []
    try:
        for step in alone.steps(2):
            usual = step.number < from_step
            with step:
                batch = step.batch() if usual or wrong != "fetch" else torch.ones(2, 3)
                loss = alone.model(batch).sum()
                if usual or wrong != "backward":
                    loss.backward()
                if not usual and wrong == "more":
                    alone.model(batch).sum().backward()
                alone.optimizer.step()
                applied.append(step.number)
                if not usual and wrong == "late":
                    alone.model(batch).sum().backward()
    except UsageError as error:
        alone.errors.append(error)
    return applied


REASONS = {"fetch": "batch from step.batch()", "backward": "backward", "late": "after", "more": "more than the 1"}


@pytest.mark.parametrize("wrong", ["fetch", "backward", "late"])
def test_scripts_that_cannot_be_run_in_parts_are_refused(tmp_path: Path, wrong: str) -> None:
    alone = Alone(tmp_path, linear)
    assert train(alone, wrong, from_step=0) == [0]
    assert "cannot be shared out" in str(alone.errors[-1]) and REASONS[wrong] in str(alone.errors[-1])


@pytest.mark.parametrize("wrong", REASONS)
def test_a_script_that_changes_its_habits_is_stopped(tmp_path: Path, wrong: str) -> None:
    """Rather than a gradient that is not that of the whole world."""
    alone = Alone(tmp_path, linear)
    assert train(alone, wrong, from_step=1) == ([0, 1] if wrong == "late" else [0])
    assert "was to be done in parts" in str(alone.errors[0]) and REASONS[wrong] in str(alone.errors[0])
    assert torch.autograd.backward.__module__ == "torch.autograd"


@pytest.mark.parametrize("tracked", [True, False])
def test_what_no_other_rank_could_know(tmp_path: Path, tracked: bool) -> None:
    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield torch.ones(2, 3)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _state: dict[str, Any]) -> None:
            return

    alone = Alone(tmp_path, linear, **({} if tracked else {"data": Loader()}))
    alone.job._tracked = tracked
    next(iter(alone.job.steps(1)))
    objection = alone.member.degraded.objection()
    assert objection is not None and ("tracked" if tracked else "keeps its position") in objection
