"""Where the facts of a job are kept, and who may write them: a keeper elects one leader and refuses all others.

A term is the number of a leadership; it only grows. Whoever writes names its term, and a write of an older term fails
(`Deposed`): two coordinators can never both decide, not even when one of them slept through its own removal.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from understudy.errors import Deposed


class Keeper(Protocol):
    """One coordinator's door to the store."""

    async def lead(self, name: str) -> int:
        """Wait until this coordinator leads. `name`: where agents find it. Returns the term. May be called again after
        it was deposed."""
        ...

    def leads(self) -> bool:
        """Does it lead right now, as far as can be known without asking anybody? Once False, it stays so until `lead`
        returns again. Whoever is about to act asks this first: a process may wake up long after its term."""
        ...

    async def deposed(self) -> str:
        """Wait until it does not lead any more. Returns why."""
        ...

    async def leader(self) -> str:
        """The name of whoever leads now; empty when nobody does."""
        ...

    async def read(self) -> bytes | None:
        """The newest facts. Raises `LedgerError` if they are damaged."""
        ...

    async def record(self, facts: bytes) -> None:
        """When this returns, the facts are as durable as the store is. Raises `Deposed`."""
        ...

    async def close(self) -> None:
        """Give up leadership, if this one has it."""
        ...


@dataclass(slots=True)
class Shelf:
    """What memory keepers of one process share."""

    term: int = 0
    leader: str = ""
    facts: bytes | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryKeeper:
    """For one host, and for tests: lives and dies with the process."""

    def __init__(self, shelf: Shelf | None = None) -> None:
        self._shelf = shelf or Shelf()
        self._term = 0

    async def lead(self, name: str) -> int:
        while self._shelf.leader:
            await self._shelf.changed.wait()
        self._shelf.term += 1
        self._term, self._shelf.leader = self._shelf.term, name
        self._shelf.tell()
        return self._term

    def leads(self) -> bool:
        return bool(self._term) and self._shelf.term == self._term and bool(self._shelf.leader)

    async def deposed(self) -> str:
        while self.leads():
            await self._shelf.changed.wait()
        return f"term {self._term} is over"

    async def leader(self) -> str:
        return self._shelf.leader

    async def read(self) -> bytes | None:
        return self._shelf.facts

    async def record(self, facts: bytes) -> None:
        if not self.leads():
            raise Deposed(f"term {self._term} is over")
        self._shelf.facts = facts

    def depose(self) -> None:
        """As if its lease had run out."""
        if self.leads():
            self._shelf.leader = ""
            self._shelf.tell()

    async def close(self) -> None:
        self.depose()
