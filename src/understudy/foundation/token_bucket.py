"""A token bucket: so many at once, and then so many per second. The caller brings the time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once, and then so many per second."""

    burst: float
    per_second: float


class TokenBucket:
    """It is full at first, and fills again with time."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._tokens, self._at = rate, rate.burst, now

    def take(self, now: float) -> float:
        """0.0: one token was taken. Otherwise none was, and there is one in so many seconds."""
        self._fill(now)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._rate.per_second

    def spend(self, cost: float, now: float) -> float:
        """For what has happened already: the bucket may owe tokens. Returns in how many seconds it owes none."""
        self._fill(now)
        self._tokens -= cost
        return max(0.0, -self._tokens / self._rate.per_second)

    def _fill(self, now: float) -> None:
        self._tokens = min(self._rate.burst, self._tokens + max(0.0, now - self._at) * self._rate.per_second)
        self._at = now
