"""The state store in a folder that all hosts share: a log of numbered files, elections included.

    folder:///shared/4711        FOLDER/JOB/log/00000000000000000001, ...2, ...       (`files.numbered`)

Each entry says which leadership it belongs to, and which entry has the newest facts. A coordinator leads once it has
made the next entry, an election; its number is the term. Every later write of that leader is the next entry again. So a
leader whose next number is taken by another one's election is deposed by that very file: no clock and no lease is
needed for that.

Clocks are for noticing only. A leader writes into its heartbeat file twice a second; a standby that sees it unchanged
for `_SILENT_AFTER` stands for election. A leader that could not write there for `_LEASE` stops leading by itself.
"""

import asyncio
import contextlib
import secrets
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from understudy.coordinator.state_store import StateStore
from understudy.coordinator.stores import StoreRequest
from understudy.errors import Deposed, LedgerError, SettingsError
from understudy.files.in_thread import answer_within, start_in_thread
from understudy.files.numbered import NumberedFiles
from understudy.files.private import make_private_folder, write_private
from understudy.foundation.clock import Clock, SystemClock

SCHEME = "folder"
_LEASE = 3.0  # seconds
_SILENT_AFTER = 3.5  # seconds
_RENEW_EVERY = 0.5
_LOOK_EVERY = 0.2
_SLOW = 5.0  # seconds after which people hear that the folder does not answer
_LAST_WORDS = 1.0  # seconds for giving up the lead
_KEPT = 4  # entries behind the newest, for people that look into the folder

_Answer = TypeVar("_Answer")


class Entry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`leader` empty: that leadership was given up. `facts_at`: the entry with the newest facts, 0 if there are none.
    `nonce`: no two entries are equal."""

    term: int
    leader: str
    facts_at: int
    facts: bytes = b""
    checksum: int = 0  # of the facts
    nonce: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(16))


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry, without its facts. `number` 0: the log is empty. `damaged`: it cannot be read."""

    number: int = 0
    term: int = 0
    leader: str = ""
    facts_at: int = 0
    damaged: str = ""


@dataclass(slots=True)
class Silence:
    """What was seen of the present leader, and since when it has not changed, by the observer's own clock."""

    seen: tuple[int, bytes] | None = None
    since: float = 0.0

    def lasts(self, seen: tuple[int, bytes], now: float) -> float:
        if seen != self.seen:
            self.seen, self.since = seen, now
        return now - self.since


def folder_of(address: str) -> Path:
    """Of `--store folder:///shared/4711`. SettingsError if that cannot be one."""
    scheme, _, path = address.partition("://")
    if scheme != SCHEME or not path.startswith("/") or not path.strip("/"):
        raise SettingsError(f"--store {address}: give an absolute path, as in folder:///shared/4711")
    return Path(path)


def folder_of_job(root: Path, job: str) -> Path:
    return root / f"job-{quote(job, safe='')}"


class FolderLog:
    """What the entries mean. It does disk I/O, and raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._files = NumberedFiles(folder / "log")
        self._heartbeats = folder / "heartbeats"
        self._known = Head()

    def head(self) -> Head:
        """An entry never changes, so it is read once."""
        while True:
            number = self._files.newest()
            if number == self._known.number:
                return self._known
            content = self._files.read(number)
            if content is not None:  # else a later one has taken its place already
                self._known = _head_of(number, content)

    def append(self, after: int, entry: Entry) -> Head | None:
        """None: another entry has come first."""
        content = msgspec.msgpack.encode(entry)
        if not self._files.append(after + 1, content):
            return None
        return _head_of(after + 1, content)

    def facts(self) -> bytes | None:
        looked_at = -1
        while True:
            head = self.head()
            if head.damaged:
                raise LedgerError(f"entry {head.number} of the log cannot be read: {head.damaged}")
            if not head.facts_at:
                return None
            content = self._files.read(head.facts_at)
            if content is not None:
                return _facts_of(head.facts_at, content)
            if head.number == looked_at:  # else newer facts have taken their place meanwhile
                raise LedgerError(f"entry {head.facts_at} of the log, with the facts, is missing")
            looked_at = head.number

    def compact(self, head: Head) -> None:
        """The newest facts are all that a reader needs, and elections since then nothing."""
        self._files.keep_only({head.facts_at}, head.number - _KEPT)
        if self._heartbeats.is_dir():
            for path in self._heartbeats.iterdir():
                if path.name.isdecimal() and int(path.name) < head.term:
                    path.unlink(missing_ok=True)

    def beat(self, term: int, count: int) -> None:
        make_private_folder(self._heartbeats)
        write_private(self._heartbeats / str(term), str(count).encode())

    def heartbeat(self, term: int) -> bytes:
        try:
            return (self._heartbeats / str(term)).read_bytes()
        except FileNotFoundError:
            return b""


class FolderStateStore:
    """One coordinator's connection. `say`: told when the folder does not answer."""

    def __init__(
        self, folder: Path, *, clock: Clock | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder, self._clock, self._say = folder, clock or SystemClock(), say
        self._log = FolderLog(folder)
        self._appending = threading.Lock()  # an append may outlive the task that asked for it
        self._head = Head()  # the last entry of this leader
        self._term = 0
        self._silence = Silence()
        self._valid_until = 0.0
        self._over = asyncio.Event()
        self._over.set()
        self._why = "it never led"
        self._renewing: asyncio.Task[None] | None = None

    # -- leadership ---------------------------------------------------------------------------------------------------

    async def lead(self, name: str) -> int:
        await self._let_go()
        while True:
            head, silent = await self._ask(self._look)
            if (not head.leader or silent) and await self._ask(partial(self._stand, head, name)):
                self._over.clear()
                self._renewing = asyncio.create_task(self._renew())
                return self._term
            await asyncio.sleep(_LOOK_EVERY)

    def _look(self) -> tuple[Head, bool]:
        """The newest entry, and whether its leader has been silent for too long."""
        head = self._log.head()
        seen = head.number, self._log.heartbeat(head.term)
        return head, self._silence.lasts(seen, self._clock.now()) >= _SILENT_AFTER

    def _stand(self, head: Head, name: str) -> bool:
        """The facts of a log that cannot be read stay unreadable, until this leader writes its own."""
        with self._appending:
            began, term = self._clock.now(), head.number + 1
            facts_at = head.number if head.damaged else head.facts_at
            made = self._log.append(head.number, Entry(term=term, leader=name, facts_at=facts_at))
            if made is None:
                return False
            self._log.beat(term, 0)
            self._log.compact(made)
            self._head, self._term = made, term
            self._valid_until = began + _LEASE
            return True

    async def _renew(self) -> None:
        """The next try may find the folder well again."""
        count = 0
        while self.leads():
            await asyncio.sleep(_RENEW_EVERY)
            count += 1
            began = self._clock.now()
            if not self.leads():
                return
            with contextlib.suppress(OSError, TimeoutError):
                newest = await answer_within(_LEASE, partial(self._beat, self._term, count))
                if newest.term != self._term or not newest.leader:
                    self._end(_superseded(newest))
                elif self.leads():
                    self._valid_until = began + _LEASE

    def _beat(self, term: int, count: int) -> Head:
        self._log.beat(term, count)
        return self._log.head()

    def leads(self) -> bool:
        if not self._over.is_set() and self._clock.now() >= self._valid_until:
            self._end(f"its heartbeat could not be written for {_LEASE:g} s")
        return not self._over.is_set()

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._why = why
            self._over.set()

    async def deposed(self) -> str:
        await self._over.wait()
        return self._why

    async def leader(self) -> str:
        head, silent = await self._ask(self._look)
        return "" if silent else head.leader

    async def _let_go(self) -> None:
        """Of a leadership that may not have been superseded yet, though by our clock it is over."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        term, self._term = self._term, 0
        if term:
            with contextlib.suppress(OSError, TimeoutError):
                await answer_within(_LAST_WORDS, partial(self._resign, term))

    def _resign(self, term: int) -> None:
        with self._appending:
            if self._head.term == term:  # else this call has outlived even a later leadership
                self._log.append(self._head.number, Entry(term=term, leader="", facts_at=self._head.facts_at))

    async def close(self) -> None:
        self._end("it was closed")
        await self._let_go()

    # -- facts --------------------------------------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        return await self._ask(self._log.facts)

    async def record(self, facts: bytes) -> None:
        """Tried again while this one leads: an entry that is there already is known by its nonce."""
        nonce = secrets.token_bytes(16)
        if not await self._ask(partial(self._record, self._term, facts, nonce), while_leading=True):
            self._end(_superseded(await self._ask(self._log.head)))
            raise self._deposed()

    def _record(self, term: int, facts: bytes, nonce: bytes) -> bool:
        with self._appending:
            if term != self._term or not term:  # this attempt has outlived its leadership
                return False
            number = self._head.number
            entry = Entry(
                term=term,
                leader=self._head.leader,
                facts_at=number + 1,
                facts=facts,
                checksum=zlib.crc32(facts),
                nonce=nonce,
            )
            made = self._log.append(number, entry)
            if made is None:
                return False
            self._head = made
            self._log.compact(made)
            return True

    def _deposed(self) -> Deposed:
        return Deposed(f"term {self._term} is over: {self._why}")

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[[], _Answer], while_leading: bool = False) -> _Answer:
        """A shared folder may be away for a while: ask until it answers."""
        pause, said = 0.05, False
        while True:
            if while_leading and not self.leads():
                raise self._deposed()
            try:
                return await self._answer(start_in_thread(call), while_leading)
            except OSError as error:
                if not said:
                    self._say(f"the folder {self._folder} cannot be used, trying again: {error.strerror or error}")
                said = True
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 2)

    async def _answer(self, future: "asyncio.Future[_Answer]", while_leading: bool) -> _Answer:
        """Of a call that may block for ever."""
        over = asyncio.create_task(self._over.wait())
        try:
            slow = False
            while not future.done():
                waited_for = (future, over) if while_leading else (future,)
                await asyncio.wait(waited_for, timeout=_SLOW, return_when=asyncio.FIRST_COMPLETED)
                if while_leading and over.done() and not future.done():
                    raise self._deposed()
                if not future.done() and not slow:
                    slow = True
                    self._say(f"the folder {self._folder} has not answered for {_SLOW:g} s")
            return future.result()
        finally:
            over.cancel()
            future.cancel()


class LeaderFinder:
    """For agents: the address of the leader, as the log has it. While the folder does not answer, the last one."""

    def __init__(self, folder: Path) -> None:
        self._log, self._found = FolderLog(folder), ""

    async def __call__(self) -> list[str]:
        with contextlib.suppress(OSError, TimeoutError):
            self._found = (await answer_within(_SLOW, self._log.head)).leader
        return [self._found] if self._found else []


class FolderStores:
    """For several coordinators, on hosts that share a folder."""

    contract_version = 1

    def open(self, request: StoreRequest) -> StateStore:
        return FolderStateStore(folder_of_job(folder_of(request.address), request.job), say=request.say)


def _superseded(newest: Head) -> str:
    return f"entry {newest.number} of the log is {newest.leader or 'no coordinator'}'s, of term {newest.term}"


def _head_of(number: int, content: bytes) -> Head:
    try:
        entry = msgspec.msgpack.decode(content, type=Entry)
    except msgspec.MsgspecError as error:
        return Head(number=number, damaged=str(error))
    return Head(number=number, term=entry.term, leader=entry.leader, facts_at=entry.facts_at)


def _facts_of(number: int, content: bytes) -> bytes:
    try:
        entry = msgspec.msgpack.decode(content, type=Entry)
    except msgspec.MsgspecError as error:
        raise LedgerError(f"entry {number} of the log, with the facts, cannot be read: {error}") from error
    if zlib.crc32(entry.facts) != entry.checksum:
        raise LedgerError(f"entry {number} of the log, with the facts, is damaged")
    return entry.facts
