"""Between host and device, whose memory is the same in truth.

The device is called `cpu`, so a script says `.to(device)` of what it brings there and `.cpu()` of what it fetches. To
fetch waits for the queue and copies. Memory that is given back (`storage.resize_(0)`, as FSDP2 does) is not: the queue
fills it with a pattern instead, so that a reader that is too late sees one.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from understudy_testkit.queued_device.dispatch import Dispatcher
from understudy_testkit.queued_device.memory import DeviceMemory, is_plain
from understudy_testkit.queued_device.patches import Patches
from understudy_testkit.queued_device.stream import Stream

GIVEN_BACK = 0x6B  # every byte of memory that was given back


class Travel:
    def __init__(self, stream: Stream, memory: DeviceMemory, dispatcher: Dispatcher) -> None:
        self._stream, self._memory, self._dispatcher = stream, memory, dispatcher

    def watch(self, patches: Patches) -> None:
        patches.put(torch.Tensor, "cpu", self._fetching)
        patches.put(torch.Tensor, "to", self._bringing)
        patches.put(torch.UntypedStorage, "resize_", self._resizing)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device of a tensor of the host."""
        brought = tensor.clone()
        self._memory.adopt(brought)
        return brought

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy for the host. Waits for the queue."""
        self._stream.drain()
        with torch.utils._python_dispatch._disable_current_modes():
            return tensor.clone()

    def _fetching(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def cpu(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and self._memory.holds(tensor):
                return self.fetch(tensor)
            return before(tensor, *args, **kwargs)

        return cpu

    def _bringing(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            moved = before(tensor, *args, **kwargs)
            if type(moved) in (torch.Tensor, torch.nn.Parameter) and is_plain(moved) and _names_device(args, kwargs):
                return moved if self._memory.holds(moved) else self.bring(moved)
            return moved

        return to

    def _resizing(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            if self._stream.is_elsewhere or not self._memory.holds_storage(storage):
                return before(storage, size)
            if size > storage.size():
                self._stream.drain()
                return before(storage, size)
            if size == 0 and storage.size():
                self._dispatcher.put(lambda: _spoil(storage), [_bytes_of(storage)])
            return storage

        return resize_


def _names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    named = kwargs.get("device", args[0] if args else None)
    return isinstance(named, str | torch.device) and torch.device(named).type == "cpu"


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.empty(0, dtype=torch.uint8).set_(storage)


def _spoil(storage: torch.UntypedStorage) -> None:
    _bytes_of(storage).fill_(GIVEN_BACK)
