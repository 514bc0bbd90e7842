"""The connections behind the emulated communicator: one object of gloo for each time that it is formed.

Nothing of it can be interrupted from outside but by breaking its connections, which is done once nothing waits for them
any more.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import ReconfigureOptions, Store

from understudy.foundation.settings import network_interfaces
from understudy.groups.connections import Connections

_THREADS = 2
_PATIENCE = timedelta(days=100)  # for an operation: the emulated communicator has a watch of its own
_LOOK_AGAIN_EVERY = 0.002


class Gloo:
    """`reconfigurable`: it is connected by `connect`; otherwise it is connected when it is made."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, reconfigurable: bool) -> None:
        self._connections = Connections()
        self._store = StubbornStore(store, self._connections.hear, timeout)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout if not reconfigurable else _PATIENCE
        options._devices = _devices()
        options._threads = _THREADS
        options.enable_reconfigure = reconfigurable
        with self._connections.forming():
            self.backend: Any = dist.ProcessGroupGloo(self._store, rank, size, options)
        self.backend.set_timeout(_PATIENCE)

    @property
    def handle(self) -> str:
        return str(self.backend.get_reconfigure_handle())

    def connect(self, unique: int, handles: list[str], timeout: timedelta) -> None:
        options = ReconfigureOptions()
        options.uuid, options.handles, options.timeout = unique, handles, timeout
        self._store.set_timeout(timeout)
        with self._connections.forming():
            for handle in handles:
                self._connections.hear(handle.encode())
            self.backend.reconfigure(options).wait()

    def leave(self) -> None:
        """What still waits in it fails. Taking it apart takes a while, and must not be cut off by the end of the
        process: no daemon."""
        self._connections.break_all()
        left, self.backend = [self.backend], None
        threading.Thread(target=left.clear, name="queued-device-leaves").start()


class StubbornStore(Store):
    """The store of the group, but a wait ends by an answer or by its own timeout only."""

    def __init__(self, store: Store, overheard: Callable[[bytes], None], timeout: timedelta) -> None:
        super().__init__()
        self._store, self._overheard, self._timeout = store, overheard, timeout

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        deadline = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"{keys[0]} did not appear in the store in time")
            time.sleep(_LOOK_AGAIN_EVERY)

    def get(self, key: str) -> bytes:
        self.wait([key])
        value = self._store.get(key)
        self._overheard(value)
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def set(self, key: str, value: str | bytes) -> None:
        self._overheard(value.encode() if isinstance(value, str) else bytes(value))
        self._store.set(key, value)  # type: ignore[arg-type]

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        return self._store.compare_set(key, expected_value, desired_value)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def has_extended_api(self) -> bool:
        return True


def _devices() -> list[Any]:
    make = dist.ProcessGroupGloo
    named = [make.create_device(interface=name) for name in network_interfaces()]
    return named or [make.create_default_device()]
