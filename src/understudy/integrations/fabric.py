"""Lightning Fabric in a loop of the script's own: `protect(fabric, join(), model, optimizer, data=loader)`.

The loop is over `job.steps()` or `job.epochs()`, with all of a step in `with step:`. What is in Fabric's wrappers is
protected, and what Fabric says between ranks behind a step is a section. docs/frameworks/fabric.md says what works,
what does not and what it costs.
"""

import functools
from typing import Any

from understudy.errors import UsageError
from understudy.integrations.wrapping import replace
from understudy.training.job import Job
from understudy.training.joining import join

__all__ = ["join", "protect"]

_STRATEGIES = ("DDPStrategy", "ModelParallelStrategy", "SingleDeviceStrategy")
_SECTIONS = ("save", "barrier")


def protect(fabric: Any, job: Job, *things: Any, data: Any = None, batches_per_step: int = 1, **others: Any) -> Any:
    """Call it before the loop. `things`: what `fabric.setup` has returned. `data`: what `fabric.setup_dataloaders` has.
    Further arguments are those of `job.protect`. Returns Fabric."""
    _refuse(fabric)
    inner = {f"{type(thing).__name__} {place}": _unwrapped(thing) for place, thing in enumerate(things)}
    job.protect(data=getattr(data, "_dataloader", data), batches_per_step=batches_per_step, **inner, **others)
    replace("lightning", fabric, **{name: functools.partial(job.section, name) for name in _SECTIONS})
    return fabric


def _unwrapped(thing: Any) -> Any:
    """The module that communicates, or the optimizer that steps."""
    return getattr(thing, "_forward_module", None) or getattr(thing, "optimizer", thing)


def _refuse(fabric: Any) -> None:
    kind, scaler = type(fabric.strategy).__name__, getattr(fabric.strategy.precision, "scaler", None)
    if kind not in _STRATEGIES:
        raise UsageError(f"Understudy's adapter of Fabric works with {', '.join(_STRATEGIES)}, not with {kind}")
    if scaler is not None:
        raise UsageError("Understudy's adapter of Fabric does not work with a gradient scaler: use bf16")
