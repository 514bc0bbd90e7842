"""The c10d store as a worker sees it: waiting can be interrupted.

torch's own client waits inside C++ until a key appears or a timeout passes, and cannot be woken. A recovery must be
able to leave a wait at once, because the member whose key it waits for may have died. This store asks again and again
instead, and looks between two questions whether its generation has been abandoned.

The process that hosts the store may die. The agent starts another one on the same port, with nothing in it; this client
connects again when it next has a question. So whatever a recovery needs is set again in that recovery.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from understudy.errors import StepAbandoned

_FIRST_PAUSE = 0.0005
_PAUSE = 0.002
_PATIENCE = 0.5  # who has waited longer than this asks less often
_LONG_PAUSE = 0.02

_Answer = TypeVar("_Answer")


class InterruptibleStore(Store):
    """A `torch.distributed.Store` around a TCPStore client. `abandoned` says whether waiting has become pointless."""

    def __init__(self, host: str, port: int, abandoned: Callable[[], bool], timeout: timedelta) -> None:
        super().__init__()
        self._host, self._port, self._timeout = host, port, timeout
        self._abandoned = abandoned
        self._client = self._connect()

    def _connect(self) -> TCPStore:
        return TCPStore(self._host, self._port, is_master=False, timeout=self._timeout)

    def _ask(self, question: Callable[[TCPStore], _Answer]) -> _Answer:
        """If the store has died, ask the one that was started in its place."""
        try:
            return question(self._client)
        except dist.DistNetworkError:
            self._client = self._connect()
            return question(self._client)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        start = time.monotonic()
        deadline = start + (timeout or self._timeout).total_seconds()
        pause = _FIRST_PAUSE
        while not self.check(keys):
            if self._abandoned():
                raise StepAbandoned(f"stopped waiting for {keys[0]}: the generation was abandoned")
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"{keys[0]} did not appear in the store in time")
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE if time.monotonic() < start + _PATIENCE else _LONG_PAUSE)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._ask(lambda client: client.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        return self._ask(lambda client: client.multi_get(keys))

    def set(self, key: str, value: str | bytes) -> None:
        def set_and_see(client: TCPStore) -> None:
            client.set(key, value)  # type: ignore[arg-type]
            client.check([key])  # `set` waits for no answer: without this, a dead store would not be noticed

        self._ask(set_and_see)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: str) -> None:
        self._ask(lambda client: client.append(key, value))  # type: ignore[attr-defined]

    def add(self, key: str, value: int) -> int:
        return self._ask(lambda client: client.add(key, value))

    def check(self, keys: list[str]) -> bool:
        return self._ask(lambda client: client.check(keys))

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        return self._ask(lambda client: client.compare_set(key, expected_value, desired_value))

    def delete_key(self, key: str) -> bool:
        return self._ask(lambda client: client.delete_key(key))

    def num_keys(self) -> int:
        return self._ask(lambda client: client.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "InterruptibleStore":
        return self
