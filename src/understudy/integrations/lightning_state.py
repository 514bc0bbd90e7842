"""What Lightning's Trainer holds beside weights and optimizer: counters, what callbacks know, what was logged.

A replacement needs all of it, and a part or a section that runs again must find it as it was.
"""

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from understudy.training.loop_state import Fields

_OF_CONNECTOR = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics", "_current_fx", "_first_loop_iter")
_OF_METRIC = ("_update_count", "_computed", "_forward_cache", "_is_synced", "has_reset")
_OF_LOG = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")


def state_of(trainer: Any) -> dict[str, Any]:
    """By name, for `job.carry`. Fields come before `state_dict`, which knows better."""
    fit, loop, module = trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer.lightning_module
    progress = (fit.epoch_progress, loop.batch_progress, loop.scheduler_progress, loop.val_loop.batch_progress)
    groups: dict[str, Iterable[Any]] = {
        "progress": [*progress, loop.automatic_optimization.optim_progress],
        "loop": [Fields(loop, "_batches_that_stepped"), Fields(trainer, "should_stop")],
        "modes": [Modes(trainer, module)],
        "log": [LoggedMetrics(module, loop._results, trainer.strategy.reduce)],
        "connector": [Fields(trainer._logger_connector, *_OF_CONNECTOR)],
        "module": [Fields(module, "_current_fx_name"), Fields(module)],
        "fields of callback": map(Fields, trainer.callbacks),
        "callback": trainer.callbacks,
        "logger": map(Fields, trainer.loggers),
        "csv": [Fields(_writer_of(logger)) for logger in trainer.loggers],
    }
    return {f"{name} {place}": thing for name, group in groups.items() for place, thing in enumerate(group)}


def _writer_of(logger: Any) -> Any:
    """Of a CSV log, on rank 0: a replacement goes on in the file of its rank."""
    writer = getattr(logger, "_experiment", None)
    return writer if hasattr(writer, "metrics_file_path") else SimpleNamespace()


class Modes:
    """Which modules are in evaluation mode. What is taken is always taken while the trainer trains: a validation that
    was cut short has left both as they are in it."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer, self._module = trainer, module

    def state_dict(self) -> dict[str, Any]:
        return {"evaluated": [name for name, one in self._module.named_modules() if not one.training]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer.training = True
        for name, one in self._module.named_modules():
            one.training = name not in state["evaluated"]


class LoggedMetrics:
    """What a module has logged since the epoch began, and its torchmetrics. Neither are buffers: a pass that runs again
    would count twice. `results`: by place and name. `reduce`: the strategy's, for what is synchronised."""

    def __init__(self, module: Any, results: Any, reduce: Callable[..., Any]) -> None:
        self._module, self._results, self._reduce = module, results, reduce

    def state_dict(self) -> dict[str, Any]:
        fields = {
            name: [field for field in (*metric._defaults, *_OF_METRIC) if hasattr(metric, field)]
            for name, metric in self._all()
        }
        return {
            "logged": {name: _arguments(metric.meta) for name, metric in self._results.items()},
            "metrics": {
                name: {field: getattr(metric, field) for field in fields[name]} for name, metric in self._all()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in state["logged"].keys() - self._results.keys():
            self._log_first(**state["logged"][name])
        for name, metric in self._all():
            if name in state["metrics"]:
                vars(metric).update(state["metrics"][name])
            else:
                metric.reset()

    def _all(self) -> Iterator[tuple[str, Any]]:
        for name, module in self._module.named_modules():
            if hasattr(module, "_defaults") and hasattr(module, "_update_count"):
                yield f"module {name}", module
        yield from self._results.items()

    def _log_first(self, metric_attribute: str | None, **arguments: Any) -> None:
        """As the rank has done it that was lost."""
        value = self._module.get_submodule(metric_attribute) if metric_attribute else torch.tensor(0.0)
        self._results.log(value=value, metric_attribute=metric_attribute, sync_dist_fn=self._reduce, **arguments)


def _arguments(meta: Any) -> dict[str, Any]:
    """With which it is logged."""
    sync = {"sync_dist": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only}
    reduction = {"reduce_fx": meta.reduce_fx.__name__, "metric_attribute": meta.metric_attribute}
    return {name: getattr(meta, name) for name in _OF_LOG} | sync | reduction
