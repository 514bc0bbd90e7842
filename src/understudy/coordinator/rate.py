"""How fast one host may speak. A faster one is read later, and the transport's flow control slows it down."""

from understudy.foundation.clock import Clock
from understudy.foundation.token_bucket import Rate, TokenBucket

_RATE = Rate(burst=10_000.0, per_second=1000.0)  # messages; a host that has connected tells everything again
_BYTES = 64 * 1024  # so many bytes count as another message


class LineRate:
    """Of one line. What it may say now grows with time up to a burst."""

    def __init__(self, clock: Clock, rate: Rate = _RATE) -> None:
        self._clock = clock
        self._bucket = TokenBucket(rate, clock.now())

    def spend(self, size: int) -> float:
        """A message of so many bytes was read. Returns for how many seconds the next one has to wait."""
        return self._bucket.spend(1.0 + size / _BYTES, self._clock.now())
