"""What was recovered so far, for people: kept with the facts, because a former leader's ledger may be elsewhere."""

import time
from collections.abc import Callable

import msgspec

from understudy.foundation.clock import Clock
from understudy.ledger.goodput import Goodput
from understudy.ledger.records import DecisionRecord, RecoveryRecord

_KEPT = 20  # each about a kilobyte, written with every generation
_MOST_TRANSFERS = 64


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery, and when it ended by the wall clock: two coordinators do not share another one."""

    ended: float
    record: RecoveryRecord


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run. `newest`: oldest first. `goodput`: up to when this was kept."""

    recoveries: int = 0
    newest: tuple[Recovered, ...] = ()
    goodput: Goodput = Goodput()


class Historian:
    """A journal that counts. `recall` gives what a predecessor kept, in this host's time."""

    def __init__(self, clock: Clock, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self.history = History()

    def append(self, record: DecisionRecord | RecoveryRecord) -> None:
        if not isinstance(record, RecoveryRecord):
            return
        if len(record.transfers) > _MOST_TRANSFERS:
            record = msgspec.structs.replace(record, transfers=())
        past = Recovered(ended=self._wall() - (self._clock.now() - record.at), record=record)
        known = self.history
        newest = (*known.newest, past)[-_KEPT:]
        self.history = msgspec.structs.replace(known, recoveries=known.recoveries + 1, newest=newest)

    def recall(self) -> list[RecoveryRecord]:
        shift = self._clock.now() - self._wall()
        return [_moved(past.record, past.ended + shift) for past in self.history.newest]


def _moved(record: RecoveryRecord, at: float) -> RecoveryRecord:
    return msgspec.structs.replace(record, at=at, opened_at=at - (record.at - record.opened_at))
