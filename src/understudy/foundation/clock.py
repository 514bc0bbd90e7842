"""Time comes in through the door: everything that needs a clock is given one of these."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only go forward, the same for all processes of one host."""

    def now(self) -> float: ...


class SystemClock:
    """The host's monotonic clock (shared by all processes of the host, unlike perf_counter on some systems)."""

    def now(self) -> float:
        return time.monotonic()


class SetClock:
    """A clock that is moved by hand: tests and the simulator."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance_to(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time cannot go back from {self._now} to {now}")
        self._now = now
