"""The c10d store as a worker sees it: waiting can be interrupted.

torch's own client waits inside C++ until a key appears or a timeout passes, and cannot be woken. A recovery must be
able to leave a wait at once, because the member whose key it waits for may have died. This store asks again and again
instead, and looks between two questions whether its generation has been abandoned.

The process that hosts the store may die. The agent starts another one on the same port, with nothing in it; this client
connects again when it next has a question. So whatever a recovery needs is set again in that recovery.

The host of the store may vanish without a word. A question that gets no answer is given up when its generation has been
abandoned: `interrupt` breaks the connection, from another thread. The next generation has its store elsewhere.
"""

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from understudy.errors import StepAbandoned
from understudy.groups.connections import appeared_since, open_sockets, shut_down

_FIRST_PAUSE = 0.0005
_PAUSE = 0.002
_PATIENCE = 0.5  # seconds; a longer wait asks less often
_LONG_PAUSE = 0.02
_ANSWER_LIMIT = 0.2  # seconds; a store that is well answers in less than a thousandth of that
_REACH_LIMIT = 0.3  # seconds for one attempt to reach its host

_Answer = TypeVar("_Answer")


class InterruptibleStore(Store):
    """A `torch.distributed.Store` around a TCPStore client. `abandoned` says whether waiting has become pointless."""

    def __init__(self, host: str, port: int, abandoned: Callable[[], bool], timeout: timedelta) -> None:
        super().__init__()
        self._host, self._port, self._timeout = host, port, timeout
        self._first = (host, port)
        self._abandoned = abandoned
        self._connections: dict[int, str] = {}
        self.overheard: Callable[[bytes], None] = lambda _: None  # told of every value that is set or got
        self._asked_at: float | None = None
        self._client = self._connect()

    def move(self, address: str) -> None:
        """`address`: host:port, or empty for the one that it was made with. The store of another host holds nothing
        yet."""
        host, port = self._first if not address else (address.rpartition(":")[0], int(address.rpartition(":")[2]))
        if (host, port) != (self._host, self._port):
            self._host, self._port = host, port
            self._client = self._connect()

    def _connect(self) -> TCPStore:
        self._await_host()
        before = open_sockets()
        client = TCPStore(self._host, self._port, is_master=False, timeout=self._timeout)
        self._connections = appeared_since(before, lambda connection: connection.getpeername()[1] == self._port)
        return client

    def _await_host(self) -> None:
        """torch's client would wait inside C++ for a host that does not answer."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            try:
                socket.create_connection((self._host, self._port), timeout=_REACH_LIMIT).close()
                return
            except OSError as error:
                self._give_up_if_abandoned(f"the store at {self._host}")
                if time.monotonic() > deadline:
                    raise dist.DistNetworkError(f"no store at {self._host}:{self._port}: {error}") from error
            time.sleep(_LONG_PAUSE)

    def _give_up_if_abandoned(self, awaited: str) -> None:
        if self._abandoned():
            raise StepAbandoned(f"stopped waiting for {awaited}: the generation was abandoned")

    def interrupt(self) -> None:
        """Called from another thread: a question that has been open for so long will not be answered."""
        asked_at = self._asked_at
        if asked_at is not None and time.monotonic() - asked_at > _ANSWER_LIMIT:
            shut_down(self._connections)

    def _ask(self, question: Callable[[TCPStore], _Answer]) -> _Answer:
        """If the store has died, ask the one that was started in its place."""
        self._asked_at = time.monotonic()
        try:
            return question(self._client)
        except dist.DistNetworkError:
            self._asked_at = None
            self._give_up_if_abandoned("the store's answer")
            self._client = self._connect()
            self._asked_at = time.monotonic()
            return question(self._client)
        finally:
            self._asked_at = None

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        start = time.monotonic()
        deadline = start + (timeout or self._timeout).total_seconds()
        pause = _FIRST_PAUSE
        while not self.check(keys):
            self._give_up_if_abandoned(keys[0])
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"{keys[0]} did not appear in the store in time")
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE if time.monotonic() < start + _PATIENCE else _LONG_PAUSE)

    def get(self, key: str) -> bytes:
        self.wait([key])
        value = self._ask(lambda client: client.get(key))
        self.overheard(value)
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        values = self._ask(lambda client: client.multi_get(keys))
        for value in values:
            self.overheard(value)
        return values

    def set(self, key: str, value: str | bytes) -> None:
        def set_and_see(client: TCPStore) -> None:
            client.set(key, value)  # type: ignore[arg-type]
            client.check([key])  # `set` waits for no answer: without this, a dead store would not be noticed

        self.overheard(value.encode() if isinstance(value, str) else bytes(value))
        self._ask(set_and_see)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: str) -> None:
        def append_and_see(client: TCPStore) -> None:
            client.append(key, value)  # type: ignore[attr-defined]
            client.check([key])  # as in `set`; and a rank that is told that it was appended may append after it

        self._ask(append_and_see)

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
