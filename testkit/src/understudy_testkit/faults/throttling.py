"""Slows a process down from outside: SIGSTOP and SIGCONT in turns, many times per step. It does not notice."""

import os
import signal
import threading
import time
from types import TracebackType

_PERIOD = 0.03  # seconds from one stop to the next; well below a step, so that every step gets its share
_MOST = 0.7  # of the time; it must still get somewhere
_CORRECTION = 0.3  # of what is missing, per correction


class Throttled:
    """Inside the `with` block the process needs `factor` times as long for its work, if it has a core for itself. Where
    it has not, part of a stop is time that it would have waited for a core anyway: see `correct`."""

    def __init__(self, pid: int, factor: float) -> None:
        self._pid, self._factor, self._share = pid, factor, 1 - 1 / factor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._alternate, daemon=True)

    def __enter__(self) -> "Throttled":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def correct(self, measured: float) -> None:
        """It was slowed `measured` times lately: stop it for more, or for less, of the time."""
        wanted = self._share + _CORRECTION * (1 / measured - 1 / self._factor)
        self._share = max(0.0, min(_MOST, wanted))

    def _alternate(self) -> None:
        """What a turn got too much or too little (we are not alone on the machine) is made up for in the next ones."""
        last, owed = time.monotonic(), 0.0
        while not self._over.wait(_PERIOD * (1 - self._share)):
            try:
                if owed > 0:
                    owed -= self._stop_for(min(owed, _PERIOD))
            except ProcessLookupError:
                return
            now = time.monotonic()
            owed, last = owed + self._share * (now - last), now

    def _stop_for(self, seconds: float) -> float:
        os.kill(self._pid, signal.SIGSTOP)
        since = time.monotonic()
        try:
            time.sleep(seconds)
        finally:
            os.kill(self._pid, signal.SIGCONT)
        return time.monotonic() - since
