"""Loops of the script's own that use Hugging Face's Accelerate: `epochs, loader, compute = protect(...)`.

What is computed of a batch, forward and backward, is one function of the script (`compute`). It, clipping and the
optimizer are the parts of a window, which ends with the `accumulate` in which gradients are synchronized. The loop and
all else in it stay as they are. docs/frameworks/accelerate.md says what works, what does not and what it costs.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from understudy.errors import UsageError
from understudy.integrations.open_loaders import OpenLoaders
from understudy.integrations.wrapping import around, refuse, replace, whole
from understudy.training.job import Job
from understudy.training.joining import join
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]

Compute = Callable[[Any], Any]

_SECTIONS = ("save_state", "save_model", "wait_for_everyone")


def protect(accelerator: Any, job: Job, loader: Any, compute: Compute, *models: Any) -> tuple[Any, Any, Any]:
    """Call it right before the loop, with what `accelerator.prepare` has returned. `compute(batch)`: forward, and
    `accelerator.backward`. Returns what the loop takes instead of `range`, of `loader` and of `compute`."""
    _refuse(accelerator, loader, models)
    window, gradients = job.window, accelerator.gradient_state
    loader.rng_types = None  # nothing is broadcast when an epoch begins: its order follows from the seed

    def begin(epoch: int, place: int) -> Any:
        loader.set_epoch(epoch)
        if loader.synchronized_generator is not None:
            loader.synchronized_generator.manual_seed((job.seed << 32) + epoch)
        return accelerator.skip_first_batches(loader, place) if place else loader

    def epochs(count: int) -> Iterator[int]:
        job.enter(functools.partial(_rehearse, accelerator, loader, compute, models))
        first, accelerator.step = rewinding.begins_at
        yield from range(first, count)
        job.finish()

    @contextlib.contextmanager
    def accumulate(function: Any, *models: Any) -> Iterator[None]:
        around_body.append(True)
        with function(*models):
            yield
        around_body.clear()
        if gradients.sync_gradients:
            if not rewinding.is_ahead:
                raise UsageError("a batch comes from protect()'s loader, and has one `with accelerator.accumulate()`")
            window.commit()

    def backward(function: Any, loss: Any, **options: Any) -> None:
        if not window.runs_a_part or (window.is_real and not around_body):
            raise UsageError(
                "accelerator.backward() belongs into the function that was given to protect(), and its call into "
                "`with accelerator.accumulate(...)`: after a fault forward and backward of a step run again together"
            )
        function(loss, **options)

    def clip(function: Any, parameters: Any, *rest: Any, **options: Any) -> Any:
        kept = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)  # an iterator is used up once
        return window.part(lambda: whole(function)(kept, *rest, **options))()

    around_body, rewinding = list[bool](), job.rewinding(loader, begin)
    things = [*models, *accelerator._optimizers, *accelerator._schedulers, *filter(None, [accelerator.scaler])]
    job.protect(**{f"{type(thing).__name__} {place}": thing for place, thing in enumerate(things)})
    job.carry(loaders=OpenLoaders(gradients), gradients=Fields(gradients, "sync_gradients"))
    job.carry(**{f"registered {place}": thing for place, thing in enumerate(accelerator._custom_objects)})
    for optimizer in accelerator._optimizers:
        replace("accelerate", optimizer, step=window.part)
    replace("accelerate", accelerator, **{name: functools.partial(job.section, name) for name in _SECTIONS})
    around("accelerate", accelerator, accumulate=accumulate, backward=backward)
    around("accelerate", accelerator, clip_grad_norm_=clip, clip_grad_value_=clip)
    return epochs, rewinding, window.part(compute)


def _rehearse(accelerator: Any, loader: Any, compute: Compute, models: tuple[Any, ...]) -> None:
    """One pass without and one with communication, as under accumulation, then the optimizers."""
    from accelerate.utils import send_to_device

    batch = send_to_device(next(iter(loader.base_dataloader)), accelerator.device)
    accelerator.gradient_state._set_sync_gradients(True)
    with contextlib.ExitStack() as quiet:
        for model in models:
            quiet.enter_context(accelerator.no_sync(model))
        compute(batch)
    compute(batch)
    for optimizer in accelerator._optimizers:
        accelerator.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _refuse(accelerator: Any, loader: Any, models: tuple[Any, ...]) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""
    if (kind := type(loader).__name__) != "DataLoaderShard":
        raise UsageError(f"protect() takes the loader that accelerator.prepare() has made of a dataset, not a {kind}")
    if len(models) != len(accelerator._models):
        raise UsageError("protect() takes all models that accelerator.prepare() has returned")
    wrong = {f"rng_types={kind}": kind != "generator" for kind in loader.rng_types or ()}
    wrong |= {"an iterable dataset": not loader.batch_sampler, "a stateful loader": loader.use_stateful_dataloader}
    wrong |= {"sync_with_dataloader=False": not accelerator.gradient_state.sync_with_dataloader}
    wrong |= {"automatic_checkpoint_naming": accelerator.project_configuration.automatic_checkpoint_naming}
    refuse("Accelerate", wrong)
