"""Accelerate's adapter with stand-ins for its objects: what it refuses, and what a loop gets. The real ones: claims."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import understudy
from understudy.errors import UsageError
from understudy.integrations.accelerate import protect


class DataLoaderShard(list[Any]):
    """As `accelerator.prepare()` makes it, with its name."""

    rng_types: list[str] | None = ["generator"]  # noqa: RUF012
    batch_sampler: Any = "one"
    use_stateful_dataloader = False
    synchronized_generator = None

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Accelerator:
    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._models, self._optimizers = [model], [optimizer]
        self._schedulers, self._custom_objects = list[Any](), list[Any]()
        self.scaler, self.step, self.steps = None, 0, 2
        self.gradient_state = SimpleNamespace(
            sync_gradients=True, sync_with_dataloader=True, dataloader_references=[None]
        )
        self.project_configuration = SimpleNamespace(automatic_checkpoint_naming=False)

    @contextlib.contextmanager
    def accumulate(self, *_models: nn.Module) -> Iterator[None]:
        self.step += 1
        self.gradient_state.sync_gradients = self.step % self.steps == 0
        yield

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.steps).backward()  # type: ignore[no-untyped-call]

    def clip_grad_norm_(self, parameters: Any, most: float) -> Any:
        return nn.utils.clip_grad_norm_(parameters, most)

    def clip_grad_value_(self, parameters: Any, most: float) -> None: ...

    def save_state(self) -> str:
        return "saved"

    def save_model(self) -> None: ...

    def wait_for_everyone(self) -> None: ...


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[understudy.Job]:
    for name in ("RANK", "WORLD_SIZE", "UNDERSTUDY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    yield understudy.join(seed=3)
    dist.destroy_process_group()


def made() -> tuple[Any, Any]:
    model = nn.Linear(2, 1)
    return Accelerator(model, torch.optim.SGD(model.parameters(), lr=0.1)), DataLoaderShard(torch.ones(4, 1, 2))


def test_the_loop_stays_as_it_is(job: understudy.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator, plain = made()
    model, optimizer = accelerator._models[0], accelerator._optimizers[0]

    def compute(batch: torch.Tensor) -> torch.Tensor:
        """Forward and backward."""
        loss: torch.Tensor = model(batch).sum()
        accelerator.backward(loss)
        return loss.detach()

    epochs, loader, computed = protect(accelerator, job, plain, compute, model)
    commits, seen, before = list[int](), list[int](), model.weight.detach().clone()
    monkeypatch.setattr(job.window, "commit", lambda: commits.append(len(seen)))
    for epoch in epochs(3):
        for batch in loader:
            with accelerator.accumulate(model):
                assert computed(batch).shape == ()
                if accelerator.gradient_state.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
        seen.append(epoch)
        assert accelerator.save_state() == "saved"
    assert seen == plain.epochs == [0, 1, 2] and commits == [0, 0, 1, 1, 2, 2]
    assert computed.__doc__ == "Forward and backward." and plain.rng_types is None
    assert not torch.equal(before, model.weight)


def test_backward_belongs_into_the_function_and_that_into_accumulate(job: understudy.Job) -> None:
    accelerator, plain = made()
    model = accelerator._models[0]

    def compute(loss: torch.Tensor) -> None:
        accelerator.backward(loss)

    epochs, loader, computed = protect(accelerator, job, plain, compute, model)
    next(epochs(1))
    loss = model(next(iter(loader))).sum()
    for call in (accelerator.backward, computed):
        with pytest.raises(UsageError, match=r"belongs into the function .* `with accelerator.accumulate\(...\)`"):
            call(loss)
    with accelerator.accumulate(model):
        computed(loss)


def test_a_batch_ends_one_step_at_most(job: understudy.Job) -> None:
    accelerator, plain = made()
    accelerator.steps = 1
    epochs, loader, computed = protect(accelerator, job, plain, lambda batch: batch, *accelerator._models)
    next(epochs(1))
    next(iter(loader))
    with accelerator.accumulate():
        computed(1)
    with pytest.raises(UsageError, match=r"has one `with accelerator.accumulate"), accelerator.accumulate():
        computed(1)


@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [
        ("rng_types", ["generator", "torch"], "rng_types=torch"),
        ("use_stateful_dataloader", True, "a stateful loader"),
        ("batch_sampler", None, "an iterable dataset"),
    ],
)
def test_loaders_that_could_not_be_led_to_a_place(job: understudy.Job, attribute: str, value: Any, named: str) -> None:
    accelerator, plain = made()
    setattr(plain, attribute, value)
    with pytest.raises(UsageError, match=f"does not work with {named}$"):
        protect(accelerator, job, plain, print, *accelerator._models)


def test_other_kinds_of_loaders(job: understudy.Job) -> None:
    with pytest.raises(UsageError, match=r"accelerator.prepare\(\) has made of a dataset, not a list$"):
        protect(made()[0], job, [], print)


def test_all_models_are_wanted(job: understudy.Job) -> None:
    accelerator, plain = made()
    with pytest.raises(UsageError, match="takes all models that"):
        protect(accelerator, job, plain, print)


def test_settings_that_do_not_work(job: understudy.Job) -> None:
    accelerator, plain = made()
    accelerator.gradient_state.sync_with_dataloader = False
    accelerator.project_configuration.automatic_checkpoint_naming = True
    with pytest.raises(UsageError, match=r"with sync_with_dataloader=False, automatic_checkpoint_naming$"):
        protect(accelerator, job, plain, print, *accelerator._models)


def test_a_version_in_which_a_function_is_gone(job: understudy.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.integrations.wrapping.version", lambda _package: "9.9")
    monkeypatch.delattr(Accelerator, "accumulate")
    accelerator, plain = made()
    with pytest.raises(UsageError, match=r"^accelerate 9.9 has no Accelerator.accumulate, which"):
        protect(accelerator, job, plain, print, *accelerator._models)
