"""What a LightningModule has logged since the epoch began, and its torchmetrics, as a state.

Neither are buffers: a replacement would begin with none, and a pass that runs again would count twice.
"""

from collections.abc import Callable, Iterator
from typing import Any

_OF_METRIC = ("_update_count", "_computed", "_forward_cache", "_is_synced", "has_reset")
_OF_LOG = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")


class LoggedMetrics:
    """`results`: what the module has logged, by place and name. `reduce`: the strategy's, for what is synchronised."""

    def __init__(self, module: Any, results: Any, reduce: Callable[..., Any]) -> None:
        self._module, self._results, self._reduce = module, results, reduce

    def state_dict(self) -> dict[str, Any]:
        return {
            "logged": {name: _how(metric.meta) for name, metric in self._results.items()},
            "metrics": {
                name: {
                    field: getattr(metric, field)
                    for field in (*metric._defaults, *_OF_METRIC)
                    if hasattr(metric, field)
                }
                for name, metric in self._all()
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
        from torchmetrics import Metric

        yield from (
            (f"module {name}", metric) for name, metric in self._module.named_modules() if isinstance(metric, Metric)
        )
        yield from self._results.items()

    def _log_first(self, metric_attribute: str | None, **how: Any) -> None:
        """As the rank has done it that was lost."""
        import torch

        value = self._module.get_submodule(metric_attribute) if metric_attribute else torch.tensor(0.0)
        self._results.log(value=value, metric_attribute=metric_attribute, sync_dist_fn=self._reduce, **how)


def _how(meta: Any) -> dict[str, Any]:
    """Arguments with which it is logged."""
    sync = {"sync_dist": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only}
    reduction = {"reduce_fx": meta.reduce_fx.__name__, "metric_attribute": meta.metric_attribute}
    return {name: getattr(meta, name) for name in _OF_LOG} | sync | reduction
