"""Lets a monitor that scrapes this job see its end: else it sees a target that is down, and cannot tell why.

A job that is not scraped regularly ends at once.
"""

import asyncio
from collections.abc import Callable

from understudy.foundation.clock import Clock

_LONGEST = 30.0  # seconds that the end of a job may wait for a scrape
_LATE = 1.5  # times the interval: then no monitor scrapes any more
_LOOK_EVERY = 0.1  # seconds


class Scrapes:
    """When the metrics were asked for. Two that follow each other say how often."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._clock = clock
        self._last: float | None = None
        self._interval: float | None = None
        self._end_shown = False

    def seen(self, finished: bool) -> None:
        """`finished`: it was told so."""
        now = self._clock.now()
        self._end_shown |= finished
        self._interval = None if self._last is None else now - self._last
        self._last, self.count = now, self.count + 1

    def seconds_to_wait(self) -> float:
        """Seconds until the next scrape must have come; 0: none is to be expected."""
        if self._end_shown or self._last is None or self._interval is None:
            return 0.0
        return min(_LONGEST, max(0.0, self._last + _LATE * self._interval - self._clock.now()))

    async def one_more(self, enough: Callable[[], bool]) -> None:
        """Returns after the next scrape, when it is overdue, or when the operator has had `enough`."""
        before, until = self.count, self._clock.now() + self.seconds_to_wait()
        while self.count == before and self._clock.now() < until and not enough():
            await asyncio.sleep(_LOOK_EVERY)
