"""The interfaces of the coordinator: how it acts, and where it writes what it decided."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from understudy.foundation.ids import Generation
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol.commands import RecordGeneration, ToAgent
from understudy.protocol.state import State


class Effects(Protocol):
    """Acts on processes."""

    def carry_out(self, command: ToAgent) -> None:
        """Never waits; failures come back later as events."""
        ...


class Journal(Protocol):
    """Takes every decision and every finished recovery, in order: the ledger, the terminal."""

    def append(self, record: DecisionRecord | RecoveryRecord, /) -> None: ...


class Journals:
    """Several journals as one. One that fails ends nothing, and keeps no record from the others; that is said once."""

    def __init__(self, journals: Sequence[Journal], say: Callable[[str], None]) -> None:
        self._journals, self._say = tuple(journals), say
        self._failed: set[int] = set()

    def append(self, record: DecisionRecord | RecoveryRecord) -> None:
        for number, journal in enumerate(self._journals):
            try:
                journal.append(record)
            except Exception as error:  # whatever it is, a decision must be carried out
                if number not in self._failed:
                    self._failed.add(number)
                    self._say(f"decisions are missing from {type(journal).__name__} from now on: {error!r}")


class GenerationStore(Protocol):
    """Keeps memberships. When `record` returns None, or what it returns is done, the generation is as durable as this
    store is; no later command is carried out before that."""

    def record(self, generation: RecordGeneration, facts: Callable[[], State]) -> "asyncio.Future[None] | None": ...


class MemoryGenerations:
    """Enough for one host: the store lives and dies with the job. Only the newest membership is kept."""

    def __init__(self) -> None:
        self.newest: RecordGeneration | None = None

    def record(self, generation: RecordGeneration, facts: Callable[[], State]) -> None:  # noqa: ARG002
        if self.newest is not None and generation.generation < self.newest.generation:
            raise ValueError(f"generation {generation.generation} is older than {self.newest.generation}")
        self.newest = generation

    @property
    def generation(self) -> Generation:
        return Generation(0) if self.newest is None else self.newest.generation
