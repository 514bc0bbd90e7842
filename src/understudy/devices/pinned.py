"""Single numbers in pinned memory, which a CUDA device reads and writes when its queue comes there.

Untested: no GPU was at hand. That a copy from pinned memory reads when it is executed, and not when it is queued, is
what CUDA's documentation says; it was never seen here.
"""

import threading

import torch

from understudy.devices.contract import FenceEvent


class PinnedWord:
    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._changing = threading.Lock()
        self._value = -1
        self._host = torch.full((1,), -1, dtype=torch.int64).pin_memory()

    def raise_to(self, value: int) -> None:
        with self._changing:
            if value > self._value:
                self._value = value
                self._host.fill_(value)

    def read(self) -> torch.Tensor:
        return self._host.to(self._where, non_blocking=True)


class PinnedNumber:
    """`event`: behind the copy into `host`."""

    def __init__(self, host: torch.Tensor, event: FenceEvent) -> None:
        self._host, self._event = host, event

    def complete(self) -> bool:
        return self._event.complete()

    def value(self) -> float:
        return float(self._host.item())
