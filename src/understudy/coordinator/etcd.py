"""The state store on etcd: leadership is a key with a lease, and every write is a transaction that names it.

A leader that cannot refresh its lease stops leading by its own clock before etcd would let the key go. Facts that are
too long for one request go in pieces, and count once the head that names them is written.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from understudy.coordinator.etcd_client import OPEN, EtcdAccess, make_client
from understudy.errors import Deposed, LedgerError
from understudy.foundation.clock import Clock, SystemClock

_TTL = 3  # seconds. etcd needs one or two of them to elect a leader of its own, and this one should outlive that
_MARGIN = 0.2  # we stop this much earlier than etcd would
_REFRESH_EVERY = 0.5
_REQUEST_TIMEOUT = 1.0  # seconds for one request; another one follows, to another server
_LOOK_EVERY = 0.2  # a standby asks for the leader. A watch would tell sooner, but may die without a word
_PIECE = 1_000_000  # bytes: etcd takes 1.5 MiB per request

_Answer = TypeVar("_Answer")


class Head(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Names the newest facts. No two are equal, because `number` grows within a term."""

    term: int
    number: int
    pieces: int = 0
    content: bytes = b""  # where it is short enough


class EtcdStateStore:
    """`address`: etcd://h1:2379,h2:2379. `job`: jobs do not see each other. `say`: told when etcd does not answer."""

    def __init__(
        self,
        address: str,
        job: str,
        *,
        clock: Clock | None = None,
        say: Callable[[str], None] = lambda _: None,
        access: EtcdAccess = OPEN,
    ) -> None:
        self._client = make_client(address, access)
        self._access, self._access_used = access, access.present
        self._clock, self._say = clock or SystemClock(), say
        self._leader_key = f"understudy/{job}/leader".encode()
        self._head_key = f"understudy/{job}/facts".encode()
        self._pieces_key = f"understudy/{job}/pieces/"
        self._term = 0
        self._number = 0  # of the last facts in this term
        self._head_revision = 0  # of the head as this leader knows it: a write that lost its way cannot come late
        self._lease: Any = None
        self._valid_until = 0.0
        self._over = asyncio.Event()
        self._over.set()
        self._why = "it never led"
        self._refreshing: asyncio.Task[None] | None = None

    # -- leadership ---------------------------------------------------------------------------------------------------

    async def lead(self, name: str) -> int:
        await self._let_go()
        while True:
            if not await self.leader() and await self._retry(lambda: self._try_to_lead(name)):
                self._refreshing = asyncio.create_task(self._refresh())
                return self._term
            await asyncio.sleep(_LOOK_EVERY)

    async def _try_to_lead(self, name: str) -> bool:
        """The term is the revision at which the key was made, as told by the very transaction that made it."""
        began = self._clock.now()
        lease = await self._client.lease(_TTL)
        made = self._client.transactions
        won, answers = await self._client.transaction(
            compare=[made.version(self._leader_key) == 0],
            success=[
                made.put(self._leader_key, name.encode(), lease.id),
                made.get(self._leader_key),
                made.get(self._head_key),
            ],
            failure=[],
        )
        if not won:
            with contextlib.suppress(Exception):
                await lease.revoke()
            return False
        leader, head = _only(answers[1]), _only(answers[2])
        self._lease, self._valid_until = lease, began + _TTL - _MARGIN
        self._term, self._number = int(leader.create_revision), 0
        self._head_revision = 0 if head is None else int(head.mod_revision)
        self._over.clear()
        return True

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_EVERY)
            began = self._clock.now()
            if not self.leads():
                return
            with contextlib.suppress(Exception):  # the next try may reach another server
                answer = await _answer_of(self._lease.refresh(), _REFRESH_EVERY)
                if not answer.TTL:
                    self._end("its lease has run out")
                elif self.leads():
                    self._valid_until = began + _TTL - _MARGIN

    def leads(self) -> bool:
        if not self._over.is_set() and self._clock.now() >= self._valid_until:
            self._end(f"its lease could not be refreshed for {_TTL} s")
        return not self._over.is_set()

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._why = why
            self._over.set()

    async def deposed(self) -> str:
        await self._over.wait()
        return self._why

    async def leader(self) -> str:
        entry = await self._retry(lambda: self._client.get(self._leader_key))
        return "" if entry is None else entry.value.decode(errors="replace")

    async def _let_go(self) -> None:
        """Of a key that may still be there, though by our clock the term is over."""
        lease, self._lease = self._lease, None
        if self._refreshing is not None:
            self._refreshing.cancel()
        if lease is not None:
            with contextlib.suppress(Exception):
                await _answer_of(lease.revoke(), _REQUEST_TIMEOUT)

    async def close(self) -> None:
        self._end("it was closed")
        await self._let_go()
        with contextlib.suppress(Exception):
            await self._client.close()

    # -- facts --------------------------------------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        looked_at = None
        while True:
            entry = await self._retry(lambda: self._client.get(self._head_key))
            if entry is None:
                return None
            head = _read_head(entry.value)
            if not head.pieces:
                return head.content
            pieces = [await self._piece(head, place) for place in range(head.pieces)]
            if None not in pieces:
                return b"".join(piece for piece in pieces if piece is not None)
            if entry.mod_revision == looked_at:  # else newer facts have taken their place meanwhile
                raise LedgerError(f"{pieces.count(None)} of {head.pieces} pieces of the facts are missing")
            looked_at = entry.mod_revision

    async def _piece(self, head: Head, place: int) -> bytes | None:
        entry = await self._retry(lambda: self._client.get(self._piece_key(head, place)))
        return None if entry is None else bytes(entry.value)

    def _piece_key(self, head: Head, place: int) -> bytes:
        """In the order in which they are written, so that all older ones can be named by a range."""
        return f"{self._pieces_key}{head.term:020d}/{head.number:010d}/{place:06d}".encode()

    async def record(self, facts: bytes) -> None:
        """Tried again while this one leads: to write the same facts twice does no harm."""
        self._number += 1
        if len(facts) <= _PIECE:
            head = Head(term=self._term, number=self._number, content=facts)
        else:
            pieces = [facts[start : start + _PIECE] for start in range(0, len(facts), _PIECE)]
            head = Head(term=self._term, number=self._number, pieces=len(pieces))
            for place, piece in enumerate(pieces):
                await self._write_piece(self._piece_key(head, place), piece)
        await self._write_head(head)

    async def _write_piece(self, key: bytes, content: bytes) -> None:
        made = self._client.transactions
        done, _ = await self._as_leader(
            lambda: self._client.transaction(
                compare=[made.create(self._leader_key) == self._term], success=[made.put(key, content)], failure=[]
            )
        )
        if not done:
            self._refuse("another coordinator leads")

    async def _write_head(self, head: Head) -> None:
        made, content = self._client.transactions, msgspec.msgpack.encode(head)
        look = [made.get(self._leader_key), made.get(self._head_key)]
        done, answers = await self._as_leader(
            lambda: self._client.transaction(
                compare=[
                    made.create(self._leader_key) == self._term,
                    made.mod(self._head_key) == self._head_revision,
                ],
                success=[
                    made.put(self._head_key, content),
                    made.delete(self._pieces_key.encode(), range_end=self._piece_key(head, 0)),
                    *look,
                ],
                failure=look,
            )
        )
        leader, newest = (_only(answer) for answer in answers[-2:])
        if leader is None or leader.create_revision != self._term:
            self._refuse("another coordinator leads")
        if not done and (newest is None or newest.value != content):  # else an earlier try got there after all
            self._refuse("another process has written in its name")
        self._head_revision = int(newest.mod_revision)

    def _refuse(self, why: str) -> None:
        self._end(why)
        raise Deposed(f"term {self._term} is over: {self._why}")

    async def _as_leader(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        return await self._retry(ask, while_leading=True)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _retry(self, ask: Callable[[], Awaitable[_Answer]], while_leading: bool = False) -> _Answer:
        """etcd may be electing a leader of its own: ask until it answers."""
        pause, said = 0.05, False
        while True:
            if while_leading and not self.leads():
                raise Deposed(f"term {self._term} is over: {self._why}")
            channel = self._client.channel
            try:
                return await _answer_of(ask(), _REQUEST_TIMEOUT)
            except Exception as error:  # the client has many kinds, and none is worth a difference
                if not said:
                    self._say(f"etcd does not answer, asking again: {type(error).__name__} {error}")
                said = True
                await self._connect_anew_after(error, channel)
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 2)

    async def _connect_anew_after(self, error: Exception, channel: Any) -> None:
        """Where the same connection is of no use any more: etcd was started again and has forgotten that we logged in,
        or there are new certificates or a new login, and gRPC would go on with the former. `channel`: the one that was
        used; another request may have closed it already, and connected anew."""
        renewed = self._access.present != self._access_used
        self._access_used = self._access.present
        if renewed or ("auth token" in str(error) and self._client.channel is channel):
            with contextlib.suppress(Exception):
                await self._client.close()


async def _answer_of(request: Awaitable[_Answer], seconds: float) -> _Answer:
    """gRPC cancels the requests of a channel that is closed, and what waits for them with them. That must not end the
    task of a request whose connection another one has closed."""
    try:
        return await asyncio.wait_for(request, seconds)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionError("the connection was closed by another request") from None


def _read_head(content: bytes) -> Head:
    try:
        return msgspec.msgpack.decode(content, type=Head)
    except msgspec.MsgspecError as error:
        raise LedgerError(f"the head of the facts is not one: {error}") from error


def _only(found: list[tuple[bytes, Any]]) -> Any:
    """The entry that a transaction read, or None."""
    return found[0][1] if found else None
