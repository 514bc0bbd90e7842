"""The links of a family whose backends can be aborted and know whether they have failed: torch's `abort()` and
`get_error()`. NCCL's do; tried with stand-ins.

An abort of a backend sets its error state before it frees anything. Knows nothing of one family.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._distributed_c10d import ErrorType

_HOOK = 0x5D
"""Among the hooks of a backend. The flight recorder of torch takes numbers from 1 on."""


class Communicators:
    """The connected backends of a process, by group; one that is being connected is not looked at, nor broken."""

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self._lock = threading.Lock()
        self._backends: dict[str, Any] = {}
        self._broken: set[str] = set()  # by us
        self._forming: str | None = None
        self._before_abort: Callable[[], None] | None = None
        self._warned: dict[str, Any] = {}  # backends that call it

    def warn(self, before_abort: Callable[[], None]) -> None:
        """A backend calls its hooks behind its error state and before anything is freed, by us or by its engine."""
        self._before_abort = before_abort

    @contextmanager
    def forming(self, group: str = "", fresh: bool = False, keep: str | None = None) -> Iterator[None]:
        with self._lock:
            if fresh:
                self._backends = {name: backend for name, backend in self._backends.items() if name == keep}
                self._broken &= {keep}
            self._forming = group
        try:
            yield
        finally:
            with self._lock:
                self._forming = None

    def hold(self, group: str, backend: Any) -> None:
        with self._lock:
            self._backends[group] = backend
            self._broken.discard(group)
            if self._before_abort is not None and self._warned.get(group) is not backend:
                backend.register_abort_hook(_HOOK, self._before_abort)
                self._warned[group] = backend

    def hear(self, value: bytes) -> None:
        """Addresses are no matter of ours."""

    def broken(self) -> bool:
        return any(name in self._broken or _has_error(backend) for name, backend in self._connected())

    def break_all(self) -> int:
        return sum(self.break_group(name) for name, _ in self._connected())

    def break_group(self, group: str) -> int:
        """It counts as broken before its kernels are freed. To break it once is enough."""
        with self._lock:
            backend = None if group == self._forming or group in self._broken else self._backends.get(group)
            if backend is None:
                return 0
            self._broken.add(group)
        backend.abort()
        return 1

    def unsent(self) -> bool:
        return False

    def _connected(self) -> list[tuple[str, Any]]:
        """Those that the script still has."""
        with self._lock:
            gone = [name for name in self._backends if name != self._forming and not self._exists(name)]
            for name in gone:
                del self._backends[name]
                self._broken.discard(name)
            return [(name, backend) for name, backend in self._backends.items() if name != self._forming]


def _has_error(backend: Any) -> bool:
    return bool(backend.get_error() != ErrorType.SUCCESS)
