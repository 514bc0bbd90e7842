"""How fast one host may speak. Whoever is faster is read later, and the transport's flow control slows it down."""

from understudy.foundation.clock import Clock

_PER_SECOND = 1000.0
_BURST = 10_000.0  # a host that has connected tells everything again
_BYTES = 64 * 1024  # so many bytes count as another message


class Rate:
    """Of one line. What it may say now grows with time up to a burst."""

    def __init__(self, clock: Clock, per_second: float = _PER_SECOND, burst: float = _BURST) -> None:
        self._clock, self._per_second, self._burst = clock, per_second, burst
        self._left, self._at = burst, clock.now()

    def spend(self, size: int) -> float:
        """A message of so many bytes was read. Returns for how many seconds the next one has to wait."""
        now = self._clock.now()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= 1.0 + size / _BYTES
        return 0.0 if self._left >= 0 else -self._left / self._per_second
