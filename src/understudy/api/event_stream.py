"""The journal that the API listens to: numbers every decision and recovery, keeps the newest, wakes its followers."""

import asyncio
import statistics
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from understudy.ledger.records import DecisionRecord, RecoveryRecord

Record = DecisionRecord | RecoveryRecord
_KEPT = 2000  # records
_RECOVERIES_KEPT = 200
PHASES = ("detect", "approach", "stop", "rehearse", "regroup", "transfer", "resume", "total")


@dataclass(frozen=True, slots=True)
class Numbered:
    """Numbers count from 1, from the beginning of this process."""

    number: int
    record: Record


class EventStream:
    """Implements `coordinator.effects.Journal`. It must not fail: the coordinator is waiting."""

    def __init__(self) -> None:
        self.newest = 0
        self.recovered = 0  # since the run began, also by former leaders
        self.closed = False
        self._kept: deque[Numbered] = deque(maxlen=_KEPT)
        self._recoveries: deque[RecoveryRecord] = deque(maxlen=_RECOVERIES_KEPT)
        self._listeners: list[Callable[[Record], None]] = []
        self._changed = asyncio.Event()

    def append(self, record: Record) -> None:
        self.newest += 1
        self._kept.append(Numbered(self.newest, record))
        if isinstance(record, RecoveryRecord):
            self.recovered += 1
            self._recoveries.append(record)
        for listener in self._listeners:
            listener(record)
        self._wake()

    def recall(self, count: int, recoveries: Sequence[RecoveryRecord]) -> None:
        """What former leaders recovered, in this host's time: known before, but not by this process."""
        self.recovered = count
        self._recoveries = deque(recoveries, maxlen=_RECOVERIES_KEPT)

    def listen(self, listener: Callable[[Record], None]) -> None:
        self._listeners.append(listener)

    def after(self, number: int, most: int) -> list[Numbered]:
        """The oldest ones after `number` that are still kept."""
        first = self._kept[0].number if self._kept else self.newest + 1
        begin = max(0, number + 1 - first)
        return [self._kept[place] for place in range(begin, min(len(self._kept), begin + most))]

    def recoveries(self, most: int) -> list[RecoveryRecord]:
        """The newest ones, oldest first."""
        return list(self._recoveries)[-most:]

    def predicted_recovery(self) -> float | None:
        """Seconds that the next one may take: the median of the past ones."""
        unplanned = (record.phases for record in self._recoveries if not record.planned)
        totals = [phases["total"] for phases in unplanned if "total" in phases]
        return statistics.median(totals) if totals else None

    async def follow(self, number: int, pause: float) -> AsyncIterator[Numbered | None]:
        """Everything after `number` as it comes; None when nothing came for `pause` seconds. A follower that is slower
        than what is kept misses some and sees that in the numbers. Ends with the stream."""
        while True:
            found = self.after(number, 100)
            for numbered in found:
                number = numbered.number
                yield numbered
            if found:
                continue
            if self.closed:
                return
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), pause)
            except TimeoutError:
                yield None

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
