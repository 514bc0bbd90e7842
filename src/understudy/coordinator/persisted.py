"""What of a job is kept outside of the coordinator's memory: its policy and the facts of its membership."""

import asyncio
import zlib
from collections.abc import Callable

import msgspec

from understudy.coordinator.history import History
from understudy.coordinator.state_store import StateStore
from understudy.errors import LedgerError
from understudy.protocol.commands import RecordGeneration
from understudy.protocol.policy import Policy
from understudy.protocol.state import State

_LARGEST = 1 << 30  # bytes; 100,000 ranks need 13 MB


class PersistedJob(msgspec.Struct, frozen=True, kw_only=True):
    """`all_told`: the job has ended, and no host is left that does not know. `run`: which run of the job this is.
    `key`: with which coordinators seal what they give to hosts to keep for them. `history`: of its recoveries."""

    policy: Policy
    facts: State
    all_told: bool = False
    run: str = ""
    key: bytes = b""
    history: History = History()


def encode(kept: PersistedJob) -> bytes:
    """Names of hosts and fields come again and again: a tenth is left of them."""
    return zlib.compress(msgspec.msgpack.encode(kept), level=1)


def decode(content: bytes) -> PersistedJob:
    try:
        unpacked = zlib.decompressobj().decompress(content, _LARGEST)
        return msgspec.msgpack.decode(unpacked, type=PersistedJob)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise LedgerError(f"the kept facts of the job cannot be read: {error}") from error


async def read(state_store: StateStore) -> PersistedJob | None:
    """Raises `LedgerError` if there is something that cannot be read."""
    content = await state_store.read()
    return None if content is None else decode(content)


class PersistedGenerations:
    """Writes the facts with every generation. No process acts on a generation before the state store has it."""

    def __init__(self, state_store: StateStore, kept: Callable[[State], PersistedJob]) -> None:
        self._state_store, self._persisted = state_store, kept

    def record(self, _generation: RecordGeneration, facts: Callable[[], State]) -> "asyncio.Future[None]":
        return asyncio.ensure_future(self._state_store.record(encode(self._persisted(facts()))))
