"""What was logged in an epoch is counted once, and a replacement has it."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from understudy.integrations.lightning_state import LoggedMetrics
from understudy.state.encoding import pack, unpack


class Mean(nn.Module):
    """As a metric of torchmetrics: its states are plain attributes."""

    def __init__(self, meta: Any = None) -> None:
        super().__init__()
        self.meta = meta
        self._defaults = {"total": torch.tensor(0.0)}
        self._update_count, self._computed, self.has_reset = 0, None, False
        self.reset()

    def reset(self) -> None:
        self.total, self._update_count, self.has_reset = torch.tensor(0.0), 0, True

    def update(self, value: float) -> None:
        self.total += value
        self._update_count += 1
        self.has_reset = False


class Results(dict[str, Any]):
    """As what Lightning keeps: metrics by place and name."""

    def log(self, fx: str, name: str, value: Any, metric_attribute: str | None = None, **arguments: Any) -> None:
        sync = SimpleNamespace(
            should=arguments.pop("sync_dist", False), rank_zero_only=arguments.pop("rank_zero_only", False)
        )
        arguments |= {"reduce_fx": getattr(torch, arguments.get("reduce_fx", "mean"))}
        for flag in ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"):
            arguments.setdefault(flag, False)
        meta = SimpleNamespace(fx=fx, name=name, metric_attribute=metric_attribute, sync=sync, value=value, **arguments)
        self[f"{fx}.{name}"] = Mean(meta)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.accuracy = Mean()


def logging() -> tuple[Model, Results, LoggedMetrics]:
    model, results = Model(), Results()
    return model, results, LoggedMetrics(model, results, max)


def test_a_pass_that_runs_again_counts_once() -> None:
    model, results, metrics = logging()
    results.log("training_step", "loss", 0.5)
    results["training_step.loss"].update(0.5)
    taken = pack(metrics.state_dict(), "metrics")
    results["training_step.loss"].update(2.0)
    model.accuracy.update(1.0)
    results.log("training_step", "late", 1.0)
    results["training_step.late"].update(1.0)
    metrics.load_state_dict(unpack(taken))
    assert results["training_step.loss"].total.item() == 0.5 and results["training_step.loss"]._update_count == 1
    assert model.accuracy.total.item() == 0.0 and results["training_step.late"].has_reset


def test_a_replacement_logs_as_its_rank_did() -> None:
    model, results, metrics = logging()
    model.accuracy.update(3.0)
    results.log("on_train_batch_start", "rate", 0.5, on_epoch=True, sync_dist=True, reduce_fx="max")
    results.log("training_step", "accuracy", model.accuracy, "accuracy")
    results["on_train_batch_start.rate"].update(0.5)
    other, known, joiner = logging()
    joiner.load_state_dict(unpack(pack(metrics.state_dict(), "metrics")))
    meta = known["on_train_batch_start.rate"].meta
    assert meta.on_epoch and meta.sync.should and meta.reduce_fx is torch.max and meta.sync_dist_fn is max
    assert known["on_train_batch_start.rate"].total.item() == 0.5 and other.accuracy.total.item() == 3.0
    assert known["training_step.accuracy"].meta.value is other.accuracy
