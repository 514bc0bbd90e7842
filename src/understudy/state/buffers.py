"""Buffers that a forward pass changes, such as the statistics of batch norm: put back when an attempt is dropped.

Everything else changes only inside `optimizer.step()`. Which buffers change is learnt in the first step, so models
without such buffers pay nothing.
"""

from collections.abc import Iterable

import torch
from torch import nn

_Place = tuple[nn.Module, str]


class ChangingBuffers:
    """Call `remember` before each attempt, `learn` after the first complete one, `restore` when one is dropped."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._places: list[_Place] = [
            (owner, name)
            for module in modules
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._before: list[tuple[int, int]] = []
        self._saved: list[tuple[_Place, torch.Tensor, torch.Tensor]] = []
        self._learnt = False

    def remember(self) -> None:
        if self._learnt:
            self._saved = [(place, buffer, buffer.clone()) for place, buffer in self._buffers()]
        else:
            self._before = [_identity(buffer) for _, buffer in self._buffers()]

    def learn(self) -> None:
        """Keep only the buffers that the first step has changed."""
        if self._learnt:
            return
        now = [_identity(buffer) for _, buffer in self._buffers()]
        changed = [
            place for place, before, after in zip(self._places, self._before, now, strict=True) if before != after
        ]
        self._places, self._learnt = changed, True

    def restore(self) -> None:
        for (owner, name), buffer, saved in self._saved:
            with torch.no_grad():
                buffer.copy_(saved)
            owner._buffers[name] = buffer
        self._saved = []

    def _buffers(self) -> Iterable[tuple[_Place, torch.Tensor]]:
        for owner, name in self._places:
            buffer = owner._buffers[name]
            if buffer is not None:
                yield (owner, name), buffer


def _identity(buffer: torch.Tensor) -> tuple[int, int]:
    return id(buffer), buffer._version
