"""What a device must be able to do beside `contract`, so that it can decide at the fence (`groups.device_side_fence`).

Both are things of one number: one that the host can change after the device was asked to read it, and one that the
device computes and that comes to the host without waiting for what was queued behind it.
"""

from typing import Protocol, runtime_checkable

import torch

from understudy.devices.contract import Device


class HostWord(Protocol):
    """A whole number in the host's memory, at first -1. It only grows."""

    def raise_to(self, value: int) -> None:
        """From any thread. Every read that the device does from now on sees it."""
        ...

    def read(self) -> torch.Tensor:
        """Queue a read. One element of int64 on the device: what the word is when the device comes there, and not when
        this is called."""
        ...


class Fetched(Protocol):
    """A number on its way to the host."""

    def complete(self) -> bool:
        """Is it there? It never waits. DeviceLost when that cannot be known any more."""
        ...

    def value(self) -> float:
        """Asked once it is there."""
        ...


@runtime_checkable
class DecidingDevice(Device, Protocol):
    def word(self) -> HostWord: ...

    def fetch(self, number: torch.Tensor) -> Fetched:
        """Queue its way to the host. A tensor of one element."""
        ...
