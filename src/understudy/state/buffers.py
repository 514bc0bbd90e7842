"""Buffers that a forward pass changes, such as the statistics of batch norm: put back when an attempt is dropped.

Everything else changes only inside `optimizer.step()`. Small buffers are always remembered; which large ones change is
learnt in the first step, so that constant tables cost nothing. (A tensor's version counter would be cheaper to look at,
but batch norm does not move it.)
"""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

_SMALL = 64 * 1024  # bytes

_Place = tuple[nn.Module, str]
Remembered = tuple[_Place, torch.Tensor, torch.Tensor]


class ChangingBuffers:
    """Call `remember` before each attempt, `learn` after the first complete one, `restore` when one is dropped."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._places: list[_Place] = []
        self._saved: list[Remembered] = []
        self._learnt = False
        self.use(modules)

    def use(self, modules: Iterable[nn.Module]) -> None:
        """Look at the buffers of these as well."""
        self._places += [
            (owner, name)
            for module in modules
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def remember(self) -> None:
        self._saved = [(place, buffer, buffer.clone()) for place, buffer in self._buffers()]

    def learn(self) -> None:
        """From now on leave out large buffers that the first step did not change."""
        if not self._learnt:
            self._places = [
                (owner, name)
                for (owner, name), _, saved in self._saved
                if saved.nbytes <= _SMALL or not _same(owner._buffers[name], saved)
            ]
            self._learnt = True

    def remembered(self) -> Sequence[Remembered]:
        """As they were when this attempt began. Later ones leave it as it is."""
        return self._saved

    def put_back(self, remembered: Sequence[Remembered]) -> None:
        """Of an earlier attempt, of this one or of another step."""
        self._saved = list(remembered)
        self.restore()

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


def _same(now: torch.Tensor | None, before: torch.Tensor) -> bool:
    return now is not None and torch.equal(now, before)
