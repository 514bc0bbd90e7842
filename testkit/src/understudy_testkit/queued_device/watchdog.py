"""Looks now and then whether an operation of a communicator takes too long, as NCCL's watchdog does."""

import threading
import weakref
from typing import Protocol


class Watched(Protocol):
    def look(self) -> None: ...
    def fail(self) -> None: ...


class Watchdog:
    def __init__(self, every: float) -> None:
        self._every = every
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="queued-device-watchdog", daemon=True).start()

    def watch(self, watched: Watched) -> None:
        self._watched.add(watched)

    def fail_all(self) -> None:
        """As if the network card had failed."""
        for each in list(self._watched):
            each.fail()

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            for each in list(self._watched):
                each.look()
