"""Megatron-core in a loop of the script's own: `protect(join(), model, optimizer, scheduler, data=loader)`.

The loop is over `job.steps()`, with all of a step in `with step:`. What the distributed optimizer cuts is on one rank
only, so the job then needs copies of it on others (`--peer-snapshot-every`). docs/frameworks/megatron.md says what
works, what does not, and what has never run.
"""

from collections.abc import Callable
from typing import Any

from understudy.integrations.loose_parameters import LooseParameters
from understudy.integrations.wrapping import around, refuse
from understudy.training.job import Job
from understudy.training.joining import join
from understudy.training.loop_state import Fields

__all__ = ["join", "protect"]

_PACKAGE = "megatron-core"
_MAIN = ("fp32_from_float16_groups", "shard_fp32_from_float16_groups")


def protect(job: Job, model: Any, optimizer: Any, scheduler: Any = None, data: Any = None, **others: Any) -> None:
    """Call it before the loop. `model`: what Megatron's `DistributedDataParallel` has made, or the list of its chunks.
    `optimizer`, `scheduler`: Megatron's. `data`, and further arguments, are those of `job.protect`."""
    chunks = model if isinstance(model, list) else [model]
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    _refuse(chunks, parts)
    job.protect(data=data, **{f"model {place}": chunk for place, chunk in enumerate(chunks)}, **others)
    for place, part in enumerate(parts):
        job.protect(**{f"optimizer {place}": part.optimizer, f"main {place}": _main(part)})
        around(_PACKAGE, part.optimizer, zero_grad=_forgetting(chunks))
    if scheduler is not None:  # its own `load_state_dict` adds to what it has counted
        job.protect(scheduler=Fields(scheduler, "num_steps"))


def _main(optimizer: Any) -> LooseParameters:
    """The fp32 parameters that are stepped for those of fewer bits, or what this rank has of them."""
    groups = [group for name in _MAIN for group in getattr(optimizer, name, [])]
    return LooseParameters(one for group in groups for one in group)


def _forgetting(chunks: list[Any]) -> Callable[..., None]:
    """Gradients are forgotten when a step has been cut short: then so is what the chunks have begun to send."""

    def forget(function: Any, *args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        for chunk in chunks:
            for group in chunk.bucket_groups + chunk.expert_parallel_bucket_groups:
                group.grad_reduce_handle, group.per_param_grad_ready_counts = None, {}
            chunk.zero_grad_buffer()

    return forget


def _refuse(chunks: list[Any], parts: list[Any]) -> None:
    """What would not be exact is said at once."""
    settings = chunks[0].ddp_config
    wrong = {
        "Megatron's FSDP": settings.use_megatron_fsdp,
        "overlap_param_gather, whose parameters come in the next step": settings.overlap_param_gather,
        "a scale of the loss, which changes before ranks meet": any(one.grad_scaler for one in parts),
        "optimizer_cpu_offload": parts[0].config.optimizer_cpu_offload,
    }
    refuse("Megatron-core", wrong)
