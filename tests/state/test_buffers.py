"""A dropped attempt leaves no trace in the buffers that a forward pass changes."""

import torch
from torch import nn

from understudy.state.buffers import ChangingBuffers


class Counted(nn.Module):
    """Replaces its buffer instead of changing it in place."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("table", torch.ones(100_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return x


def _model() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(4), Counted())


def test_a_dropped_attempt_is_undone() -> None:
    model = _model()
    buffers = ChangingBuffers([model])
    buffers.remember()
    model(torch.randn(8, 4))
    buffers.learn()
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    buffers.remember()
    model(torch.randn(8, 4))
    assert not torch.equal(model.get_buffer("0.running_mean"), kept["0.running_mean"])
    buffers.restore()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, kept[name]), name


def test_a_large_table_that_never_changes_is_not_copied() -> None:
    model = _model()
    buffers = ChangingBuffers([model])
    buffers.remember()
    model(torch.randn(8, 4))
    buffers.learn()
    buffers.remember()
    names = {name for (_, name), _, _ in buffers._saved}
    assert names == {"running_mean", "running_var", "num_batches_tracked", "count"}


def test_a_model_without_such_buffers_pays_nothing() -> None:
    model = nn.Linear(2, 2)
    buffers = ChangingBuffers([model])
    buffers.remember()
    model(torch.ones(1, 2))
    buffers.learn()
    buffers.remember()
    assert buffers._saved == []
