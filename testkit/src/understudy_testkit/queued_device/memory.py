"""Which memory belongs to the device, and into which of it the queue has still to write.

All of it is memory of the host in truth. A storage is the device's if an operation of the device has made it, or if it
was brought there. Tensors that share a storage share its fate. What was made elsewhere (from NumPy, by another thread,
by a worker of a loader, before the device was installed) is the host's.
"""

import threading
from collections import Counter
from collections.abc import Iterable

import torch

_MARK = "_on_queued_device"  # torch keeps attributes of a storage as long as the storage lives


class DeviceMemory:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: Counter[int] = Counter()  # by storage: writes that are still in the queue

    def adopt(self, tensor: torch.Tensor) -> None:
        setattr(tensor.untyped_storage(), _MARK, True)

    def holds(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor) and self.holds_storage(tensor.untyped_storage())

    def holds_storage(self, storage: torch.UntypedStorage) -> bool:
        return getattr(storage, _MARK, False)

    def expect(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Writes into these are in the queue from now on. Returns what `arrived` is to be told."""
        places = [tensor.untyped_storage()._cdata for tensor in tensors]
        with self._lock:
            self._awaited.update(places)
        return places

    def arrived(self, places: Iterable[int]) -> None:
        with self._lock:
            for place in places:
                self._awaited[place] -= 1
                if not self._awaited[place]:
                    del self._awaited[place]

    def is_awaited(self, storage: torch.UntypedStorage) -> bool:
        """Would a reader see what was there before?"""
        return storage._cdata in self._awaited


def is_plain(tensor: torch.Tensor) -> bool:
    """Has it memory of the host that can be read by its strides? (Not: a fake one, one without data, a sparse one.)"""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided
