"""Slows a process down from outside: SIGSTOP and SIGCONT in turns, many times per step. It does not notice."""

import os
import signal
import threading
import time
from types import TracebackType

_PERIOD = 0.03  # seconds from one stop to the next; well below a step, so that every step gets its share


class Slowed:
    """Inside the `with` block the process needs `factor` times as long for its work, if it has a core for itself."""

    def __init__(self, pid: int, factor: float) -> None:
        self._pid, self._share = pid, 1 - 1 / factor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._alternate, daemon=True)

    def __enter__(self) -> "Slowed":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _alternate(self) -> None:
        """What a turn got too much or too little (we are not alone on the machine) is made up for in the next ones."""
        began = time.monotonic()
        stopped = 0.0
        while not self._over.wait(_PERIOD * (1 - self._share)):
            owed = self._share * (time.monotonic() - began + _PERIOD * self._share) - stopped
            if owed <= 0:
                continue
            try:
                stopped += self._stop_for(min(owed, _PERIOD))
            except ProcessLookupError:
                return

    def _stop_for(self, seconds: float) -> float:
        os.kill(self._pid, signal.SIGSTOP)
        since = time.monotonic()
        try:
            time.sleep(seconds)
        finally:
            os.kill(self._pid, signal.SIGCONT)
        return time.monotonic() - since
