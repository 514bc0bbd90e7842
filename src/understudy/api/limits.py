"""How much of each: requests per second and caller, and everything that is remembered has a size and an age."""

import enum
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from understudy.foundation.token_bucket import Rate, TokenBucket

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Bucket(enum.Enum):
    """What is counted apart from each other."""

    READ = "read"
    ACT = "act"  # also what an alert asks for
    WEBHOOK = "webhook"
    NOTE = "note"  # alerts that are only written down
    STRANGER = "stranger"  # tokens that are not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server, kept together. Alertmanager posts a whole group of alerts at once, and posts again."""

    read: Rate = Rate(100, 50)
    act: Rate = Rate(10, 0.5)
    webhook: Rate = Rate(60, 10)
    note: Rate = Rate(200, 2)
    stranger: Rate = Rate(50, 10)
    largest_body: int = 256 * 1024  # bytes
    body_seconds: float = 10.0  # for a caller to send its body
    at_once: int = 64  # requests
    at_once_each: int = 32  # of one caller: if its requests do not end, there is room for those of others
    streams: int = 16  # of events, at once
    keys: int = 4096  # idempotency keys, of all callers together
    key_seconds: float = 3600.0
    alerts: int = 10_000  # that have acted or were recorded, and must not again

    def rate(self, bucket: Bucket) -> Rate:
        rates = {Bucket.READ: self.read, Bucket.ACT: self.act, Bucket.WEBHOOK: self.webhook, Bucket.NOTE: self.note}
        return rates.get(bucket, self.stranger)


class Buckets:
    """One token bucket per caller and kind. Callers are those of the token file, so there are few; where they are not,
    `most` of them are remembered."""

    def __init__(self, limits: Limits, most: int | None = None) -> None:
        self._limits, self._most = limits, most
        self._kept: dict[tuple[str, Bucket], TokenBucket] = {}

    def take(self, caller: str, bucket: Bucket, now: float) -> float:
        """0.0: go on. Otherwise it is too early, and so many seconds are to be waited."""
        kept = self._kept.get((caller, bucket))
        if kept is None:
            if self._most is not None and len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[caller, bucket] = TokenBucket(self._limits.rate(bucket), now)
        return kept.take(now)


class Memory(Generic[_Key, _Value]):
    """Keeps a value for a time, and only so many. `full` says that one more would push out one that is not yet old."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._kept: OrderedDict[_Key, tuple[float, _Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: _Key, now: float) -> _Value | None:
        self._forget_old(now)
        found = self._kept.get(key)
        return None if found is None else found[1]

    def full(self, now: float) -> bool:
        self._forget_old(now)
        return len(self._kept) >= self._most

    def put(self, key: _Key, value: _Value, now: float) -> None:
        self._forget_old(now)
        self._kept.pop(key, None)
        while len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        self._kept[key] = now, value

    def _forget_old(self, now: float) -> None:
        """The oldest stand first, because a key that is put again goes to the end."""
        while self._kept:
            at, _ = next(iter(self._kept.values()))
            if now - at < self._seconds:
                return
            self._kept.popitem(last=False)
