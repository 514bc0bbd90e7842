"""Understudy: a spare process takes over a dead training rank at the same step, bit for bit.

    import understudy

    job = understudy.join()
    job.protect(model=model, optimizer=optimizer, data=loader)
    for step in job.steps(3000):
        with step:
            ...

The names below are loaded when they are first used: the command line and the agent import this package too, and must
not pay for (or depend on) torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.training.data.seeded import Seeded
    from understudy.training.data.step_data import Batches, StepData
    from understudy.training.job import Job
    from understudy.training.joining import join
    from understudy.training.steps import Step

__version__ = "0.1.0"

__all__ = ["Batches", "Job", "Seeded", "Step", "StepData", "join"]

_HOMES = {
    "Batches": "understudy.training.data.step_data",
    "Seeded": "understudy.training.data.seeded",
    "StepData": "understudy.training.data.step_data",
    "Job": "understudy.training.job",
    "join": "understudy.training.joining",
    "Step": "understudy.training.steps",
}
_OF_TRAINING = ("torch", "numpy", "xxhash")  # the extra [training]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name not in _OF_TRAINING:
            raise
        from understudy.errors import UsageError

        raise UsageError(f"training needs {missing.name}: pip install 'understudy[training]'") from None
