"""Where the facts of a job are kept: a state store elects one leader, which may write them, and refuses all others.

A term is the number of a leadership; it only grows. Every write names its term, and a write of an older term fails
(`Deposed`): two coordinators can never both decide, not even when one of them slept through its own removal.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from understudy.errors import Deposed


class StateStore(Protocol):
    """One coordinator's connection to the store."""

    async def lead(self, name: str) -> int:
        """Wait until this coordinator leads. `name`: where agents find it. Returns the term. May be called again after
        it was deposed."""
        ...

    def leads(self) -> bool:
        """Does it lead right now, as far as can be known without asking the store? Once False, it stays so until
        `lead` returns again. A caller asks this before it acts: a process may wake up long after its term."""
        ...

    async def deposed(self) -> str:
        """Wait until it does not lead any more. Returns why."""
        ...

    async def leader(self) -> str:
        """The name of the coordinator that leads now; empty when none does."""
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
class SharedMemoryState:
    """What the memory stores of one process share."""

    term: int = 0
    leader: str = ""
    facts: bytes | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryStateStore:
    """For one host, and for tests: lives and dies with the process."""

    def __init__(self, shared: SharedMemoryState | None = None) -> None:
        self._shared = shared or SharedMemoryState()
        self._term = 0

    async def lead(self, name: str) -> int:
        while self._shared.leader:
            await self._shared.changed.wait()
        self._shared.term += 1
        self._term, self._shared.leader = self._shared.term, name
        self._shared.tell()
        return self._term

    def leads(self) -> bool:
        return bool(self._term) and self._shared.term == self._term and bool(self._shared.leader)

    async def deposed(self) -> str:
        while self.leads():
            await self._shared.changed.wait()
        return f"term {self._term} is over"

    async def leader(self) -> str:
        return self._shared.leader

    async def read(self) -> bytes | None:
        return self._shared.facts

    async def record(self, facts: bytes) -> None:
        if not self.leads():
            raise Deposed(f"term {self._term} is over")
        self._shared.facts = facts

    def depose(self) -> None:
        """As if its lease had run out."""
        if self.leads():
            self._shared.leader = ""
            self._shared.tell()

    async def close(self) -> None:
        self.depose()
