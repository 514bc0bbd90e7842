"""DeepSpeed's engine with ZeRO 0, 1 or 2 in a loop of the script's own: `protect(engine, join(), data=loader)`.

The loop is over `job.steps()`, with all of a step in `with step:`. What ZeRO partitions is on one rank only, so the job
needs copies of it on others (`--peer-snapshot-every`). docs/frameworks/deepspeed.md says what works, what does not and
what it costs.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from understudy.integrations.loose_parameters import LooseParameters
from understudy.integrations.wrapping import around, refuse, replace
from understudy.training import joining
from understudy.training.job import Job
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]

_COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")


@functools.wraps(joining.join)
def join(*args: Any, **kwargs: Any) -> Job:
    """Call it before `deepspeed.initialize`, which would share memory between ranks on CPUs, for inference: there a
    replacement would wait for the others."""
    replace("deepspeed", importlib.import_module("deepspeed.comm.torch"), build_shm_op=lambda _: lambda: None)
    return joining.join(*args, **kwargs)


def protect(engine: Any, job: Job, data: Any = None, **others: Any) -> Any:
    """Call it before the loop. `data`: the script's loader, of which a step takes as many batches as it accumulates
    (`step.batches()`). Returns the engine."""
    zero = engine.optimizer if hasattr(engine.optimizer, "single_partition_of_fp32_groups") else None
    _refuse(engine, zero)
    optimizer = engine.optimizer if zero is None else zero.optimizer
    job.protect(model=engine.module, optimizer=optimizer, engine=Fields(engine, *_COUNTERS), **others)
    if engine.lr_scheduler is not None:
        job.protect(schedule=engine.lr_scheduler)
    if zero is not None:
        job.protect(partitions=LooseParameters(zero.single_partition_of_fp32_groups))
    if data is not None:
        job.protect(data=data, batches_per_step=engine.gradient_accumulation_steps())
    replace("deepspeed", engine, save_checkpoint=functools.partial(job.section, "save_checkpoint"))
    around("deepspeed", optimizer, zero_grad=_forgetting(engine, zero))
    return engine


def _forgetting(engine: Any, zero: Any) -> Callable[..., None]:
    """Gradients are forgotten when a step has been cut short: then so is all that DeepSpeed knows of that step."""
    books = [] if zero is None else [zero, zero._backward_hook_state]
    clean = [{name: value for name, value in vars(book).items() if _is_mark(value)} for book in books]

    def forget(function: Any, *args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        for book, marks in zip(books, clean, strict=True):
            vars(book).update(marks)
        engine.micro_steps = engine.global_steps * engine.gradient_accumulation_steps()
        engine.zero_grad()
        if zero is None:
            return
        zero.zero_grad()
        zero.params_already_reduced[:] = [False] * len(zero.params_already_reduced)
        zero.averaged_gradients.update(dict.fromkeys(zero.averaged_gradients))
        zero.all_grad_tensors.update(dict.fromkeys(zero.all_grad_tensors))
        zero.extra_large_param_to_reduce.clear()
        for bucket in zero.ipg_buckets.values():
            bucket.clear()
            bucket.buffer.clear()

    return forget


def _is_mark(value: Any) -> bool:
    return value is None or isinstance(value, bool | int)


def _refuse(engine: Any, zero: Any) -> None:
    """What would not be exact, or could not be led to its place, is said at once."""
    stage = engine.zero_optimization_stage()
    wrong = {
        f"ZeRO {stage} (0, 1 and 2 are supported)": stage > 2,
        "an optimizer of DeepSpeed's for another precision (use ZeRO 1 with bf16)": zero is None
        and not hasattr(engine.optimizer, "register_step_pre_hook"),
        "fp16, whose scale changes before ranks meet": engine.fp16_enabled(),
        "offload": getattr(zero, "cpu_offload", False),
        "ZenFlow": engine.zenflow,
        "autocast with a scaler": engine.torch_autocast_z0_gradscaler is not None,
        "managed_gradient_accumulation=false": not engine.managed_gradient_accumulation(),
        "pipelines": engine.pipeline_parallelism,
        "experts": engine.has_moe_layers,
        "checkpoints in the background": engine.checkpoint_engine.is_decoupled(),
    }
    refuse("DeepSpeed", wrong)
