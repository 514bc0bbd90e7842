"""An agent's line to a coordinator elsewhere: sends what happens on this host, and carries out orders.

While no coordinator can be reached training goes on untouched, and nothing is lost: the ends of processes are told
again on every new connection, and so is the last thing that each living worker said of each kind. All of these may
come twice. Orders of an older term than one that was obeyed are refused.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from understudy.agent.good_news import Recoveries
from understudy.errors import WireError
from understudy.foundation.clock import Clock
from understudy.foundation.exits import NO_RENDEZVOUS
from understudy.foundation.ids import MemberId
from understudy.protocol import events as ev
from understudy.protocol.commands import AssignRank, Outcome, StopJob, ToAgent
from understudy.protocol.reasons import Code, because
from understudy.protocol.sentences import sentence
from understudy.wire import expiry, message_auth, transport, versions
from understudy.wire import host_messages as wire
from understudy.wire.certificates import Certificates
from understudy.wire.inventory import HostInventory
from understudy.wire.job_tokens import JobTokens
from understudy.wire.messages import Measured

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two attempts to connect
_ANSWER_TIMEOUT = 5.0  # seconds for a coordinator to welcome or refuse us
_ENDS_KEPT = 1000
_LOOK_AT_CERTIFICATES_EVERY = 10.0  # seconds; `wire.renewal` reads them as often


class Tell(Protocol):
    """One line of the log: its kind, in words that stay; its text; and what else machines may want to know."""

    def __call__(self, code: str, text: str, /, **details: object) -> None: ...


class HostEffects(Protocol):
    """What the supervisor of this host does for us."""

    def carry_out(self, command: ToAgent) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """How this host presents itself. `token`: the job's; a new line uses the one that is present then. `store`: the
    address of its c10d store; `members`: those that live here now."""

    job: str
    token: str | JobTokens
    host: str
    ranks: int
    spares: int
    place: int | None
    settings: dict[str, Any]
    store: Callable[[], str]
    members: Callable[[], Sequence[MemberId]]
    inventory: HostInventory | None = None


class CoordinatorClient:
    """Implements `controller.Controller` for a supervisor whose coordinator is elsewhere. `given_up`: the coordinator
    refused this host for good, or none was found."""

    def __init__(
        self,
        introduction: Introduction,
        *,
        effects: HostEffects,
        addresses: Sequence[str],
        certificates: Certificates | None,
        clock: Clock,
        tell: Tell,
        wall: Callable[[], float] = time.time,
        find: Callable[[], Awaitable[Sequence[str]]] | None = None,
        patience: float = 0.0,
        holds_ranks: Callable[[], bool] = lambda: True,
    ) -> None:
        """`wall`: the time of day, which certificates are about. `find`: asked for the addresses before each round,
        where they may change. `patience`: seconds for which this host looks for a coordinator while it holds no ranks;
        0: for ever."""
        self._introduction, self._effects = introduction, effects
        self._tokens = JobTokens.of(introduction.token)
        self._addresses, self._certificates = list(addresses), certificates
        self._find = find
        self._clock, self._tell, self._wall = clock, tell, wall
        self._patience, self._holds_ranks = patience, holds_ranks
        self._alone_since: float | None = None  # without a coordinator and without ranks
        self._recoveries = Recoveries()
        self.term, self.run = 0, ""
        self._agent = secrets.token_hex(16)
        self.connected, self.given_up = False, False
        self._named = ""  # the leader, as a standby calls it
        self.refused: Counter[str] = Counter()
        self._outbox: asyncio.Queue[bytes] | None = None
        self._said: dict[MemberId, dict[type[ev.Event], wire.Happened]] = {}
        self._seats: dict[MemberId, tuple[int, int]] = {}  # rank and world
        self._bequests: dict[int, wire.Bequeathed] = {}  # by rank: of this host, and of another one's
        self._pace: wire.Happened | None = None
        self._steps: wire.Advanced | None = None
        self._ends: deque[wire.Happened] = deque(maxlen=_ENDS_KEPT)
        self._first_signs: dict[MemberId | None, float] = {}
        self._connecting: asyncio.Task[None] | None = None

    # -- what the supervisor tells ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._connecting = asyncio.create_task(self._keep_connected())

    def tick(self) -> None:
        return

    def next_deadline(self) -> float | None:
        return None  # the coordinator has all deadlines

    def lost_since(self, member: MemberId | None, at: float) -> None:
        self._first_signs[member] = at

    def inherited(self, member: MemberId, bequest: bytes) -> None:
        """It outlives the member, and even this connection's coordinator."""
        rank, world = self._seats.get(member, (None, 0))
        left = wire.Bequeathed(member=member, content=bequest, rank=rank, world=world)
        self._keep(left)
        self._send(left)

    def _keep(self, left: wire.Bequeathed) -> None:
        if left.rank is not None and (left.rank not in self._bequests or left.world >= self._bequests[left.rank].world):
            self._bequests[left.rank] = msgspec.structs.replace(left, again=True)

    def measured(self, told: Measured) -> None:
        self._recoveries.measured(told)
        self._send(told)

    def advanced(self, smallest: int, largest: int) -> None:
        """Only the newest is of use, so that nothing waits for a coordinator."""
        self._steps = wire.Advanced(smallest=smallest, largest=largest)
        self._send(self._steps)

    def handle(self, event: ev.Event) -> None:
        member: MemberId | None = getattr(event, "member", None)
        first_sign = self._first_signs.pop(member, None)
        message = wire.from_event(event, None if first_sign is None else self._clock.now() - first_sign)
        if isinstance(event, ev.MemberLost):
            self._said.pop(event.member, None)
            self._seats.pop(event.member, None)
            self._ends.append(message)
            self._send(message)
        elif member is not None:
            if isinstance(event, ev.MemberResumed):
                self._on_resumed(member, event.generation)
            self._tell_of(member, message)
        else:
            if isinstance(event, ev.PaceLearnt):
                self._pace = message
            self._send(message)

    def _on_resumed(self, member: MemberId, generation: int) -> None:
        if self._recoveries.resumed(generation, member, self._seats):
            ranks = sorted(rank for rank, _ in self._seats.values())
            text = f"recovered: ranks {ranks} of this host go on, generation {generation}"
            self._tell("recovered", text, generation=generation, ranks=ranks)

    def _tell_of(self, member: MemberId, message: wire.Happened) -> None:
        """The last of its kind is kept, for the next leader."""
        self._said.setdefault(member, {})[type(message.event)] = message
        self._send(message)

    def _send(self, message: wire.FromHost) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(wire.encode(message))

    async def close(self, reason: str) -> None:
        self._send(wire.Farewell(reason=reason))
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._flushed(), 1.0)
        if self._connecting is not None:
            self._connecting.cancel()

    async def _flushed(self) -> None:
        while self._outbox is not None and not self._outbox.empty():
            await asyncio.sleep(0.01)

    # -- the connection -----------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Round after round, with a longer pause after each in which no coordinator took us."""
        pause = _FIRST_PAUSE
        complained: set[tuple[str, str]] = set()  # once for each reason, until there is a coordinator again
        while not self.given_up:
            if await self._found_others():
                pause = _FIRST_PAUSE
            if not self._addresses and ("", "") not in complained:
                complained.add(("", ""))
                self._tell("no coordinator", "no coordinator leads; it is looked for again and again", address="")
            lost = await self._go_round(complained)
            if self._is_left_alone(since_now=lost is not None):
                return
            if lost is not None:
                pause, complained = _FIRST_PAUSE, set()
                self._addresses.remove(lost)
                self._addresses.append(lost)  # if it still leads, the others will say so
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # thousands of hosts may be looking for a leader
            pause = min(_LONGEST_PAUSE, pause * 1.6)

    async def _found_others(self) -> bool:
        """Another coordinator leads than the one that was tried last."""
        before = self._addresses
        if self._find is not None:
            self._addresses = list(await self._find())
        return self._addresses != before

    def _is_left_alone(self, *, since_now: bool) -> bool:
        """A rank that lives trains on and may be recovered yet; a host without any has nothing to wait for in the
        end."""
        now = self._clock.now()
        if self._holds_ranks() or self.given_up:
            self._alone_since = None
            return False
        if since_now or self._alone_since is None:
            self._alone_since = now
        if not self._patience or now - self._alone_since < self._patience:
            return False
        self.given_up = True
        reason = because(Code.NO_COORDINATOR, seconds=self._patience)
        self._effects.carry_out(StopJob(outcome=Outcome.FAILED, reason=reason, exit_code=NO_RENDEZVOUS))
        return True

    async def _go_round(self, complained: set[tuple[str, str]]) -> str | None:
        """Ask every coordinator once; the one that is named as the leader comes next. Returns the address of the
        coordinator whose connection was lost, if one was."""
        waiting, tried = deque(self._addresses), set[str]()
        while waiting:
            address = waiting.popleft()
            if address in tried:
                continue
            tried.add(address)
            self._named = ""
            why = await self._try(address)
            if self.given_up:
                return None
            if (address, why) not in complained:
                text = f"no coordinator at {address}: {why}; training goes on, and it is tried again"
                self._tell("no coordinator", text, address=address)
                complained.add((address, why))
            if self.connected:
                self.connected, self._outbox = False, None
                return address
            if self._named:
                waiting.appendleft(self._named)
        return None

    async def _try(self, address: str) -> str:
        """Attend as long as it lasts. Returns why it is over."""
        try:
            return await self._attend(address)
        except Exception as error:  # whatever is wrong with the network, we try again
            why = transport.explain(error)
            if transport.is_unauthorised(error) and not self.term:  # it never was another one
                self._give_up(f"{address}: {why}")
            ended = "" if self._certificates is None else expiry.ended(self._certificates, self._wall())
            return f"{ended} ({why})" if ended else why

    async def _attend(self, address: str) -> str:
        channel = transport.open_channel(address, self._certificates)
        try:
            stream = await message_auth.call(channel.stream_stream(transport.PATH), self._tokens.own, _ANSWER_TIMEOUT)
            await asyncio.wait_for(stream.write(wire.encode(self._greeting())), _ANSWER_TIMEOUT)
            answer = await asyncio.wait_for(stream.read(), _ANSWER_TIMEOUT)
            welcome = wire.decode_to_host(answer) if isinstance(answer, bytes) else None
            if isinstance(welcome, wire.Refuse):
                return self._on_refusal(welcome)
            if isinstance(welcome, wire.Order) and isinstance(welcome.command, StopJob) and welcome.term >= self.term:
                self._obey(welcome)  # our run had ended before we found a coordinator again
                return sentence(welcome.command.reason)
            if not isinstance(welcome, wire.Welcome) or welcome.term < self.term:
                return "it did not answer as the leader would"
            own = f"host {self._introduction.host}"
            versions.check(own, f"the coordinator at {address}", welcome.protocol, welcome.version)
            self.term, self.run = welcome.term, welcome.run or self.run
            text = f"connected to the coordinator at {address}: run {self.run}, term {self.term}"
            self._tell("connected", text, address=address, term=self.term)
            return await self._serve(stream)
        finally:
            await channel.close()

    def _greeting(self) -> wire.Attend:
        own = self._introduction
        return wire.Attend(
            job=own.job,
            host=own.host,
            ranks=own.ranks,
            spares=own.spares,
            place=own.place,
            store=own.store(),
            term=self.term,
            members=list(own.members()),
            ends=list(self._ends),
            settings=own.settings,
            inventory=own.inventory,
            run=self.run,
            agent=self._agent,
            protocol=versions.PROTOCOL,
            version=versions.VERSION,
        )

    def _give_up(self, reason: str) -> None:
        """This host will never be part of the job, which may go on without it."""
        self.given_up = True
        refused = because(Code.REFUSED_BY_COORDINATOR, text=reason)
        self._effects.carry_out(StopJob(outcome=Outcome.FAILED, reason=refused, exit_code=2))

    def _on_refusal(self, refusal: wire.Refuse) -> str:
        if refusal.final:
            self._give_up(refusal.reason)
        if refusal.leader and refusal.leader not in self._addresses:
            self._addresses.append(refusal.leader)
        self._named = refusal.leader
        return refusal.reason

    async def _serve(self, stream: Any) -> str:
        """Connected: tell what the coordinator may not know, then everything that happens."""
        outbox: asyncio.Queue[bytes] = asyncio.Queue()
        said = [message for kinds in self._said.values() for message in kinds.values()]
        newest = [message for message in (self._pace, self._steps) if message is not None]
        for message in (*self._bequests.values(), *said, *newest):
            outbox.put_nowait(wire.encode(message))
        self._outbox, self.connected = outbox, True
        writing = asyncio.create_task(self._write(stream, outbox))
        certified = asyncio.create_task(self._tell_of_certificates(outbox))
        try:
            while isinstance(data := await stream.read(), bytes):
                self._obey(wire.decode_to_host(data))
            return "the connection ended"
        finally:
            writing.cancel()
            certified.cancel()

    async def _tell_of_certificates(self, outbox: "asyncio.Queue[bytes]") -> None:
        """When they end, so that an operator of the coordinator sees it for all hosts. A connection outlives them."""
        told = None
        while self._certificates is not None:
            ends = self._certificates.ends().values()
            if ends and min(ends) != told:
                told = min(ends)
                outbox.put_nowait(wire.encode(wire.CertificateEnds(at=int(told))))
            await asyncio.sleep(_LOOK_AT_CERTIFICATES_EVERY)

    @staticmethod
    async def _write(stream: Any, outbox: "asyncio.Queue[bytes]") -> None:
        while True:
            await stream.write(await outbox.get())

    def _on_seat(self, assign: AssignRank) -> None:
        """What a joiner inherits it will leave in its turn; the next leader must hear of it."""
        member, rank, world = assign.member, assign.rank, assign.founded_in
        if self._seats.get(member) != (rank, world):  # an order may come twice
            text = f"rank {rank} is on this host: {member}, generation {assign.generation}"
            self._tell("rank", text, rank=rank, member=member, generation=assign.generation)
        self._seats[member] = rank, world
        if assign.bequest:
            self._keep(wire.Bequeathed(member=member, content=assign.bequest, rank=rank, world=world))

    # -- orders -------------------------------------------------------------------------------------------------------

    def _obey(self, order: wire.ToHost | wire.Unknown) -> None:
        if isinstance(order, wire.Unknown):
            self.refused["unknown order"] += 1
            return
        if isinstance(order, wire.Welcome | wire.Refuse):
            raise WireError("a greeting in the middle of a stream")
        if order.term < self.term:
            self.refused["older term"] += 1
            return
        match order:
            case wire.Order(command=command):
                if isinstance(command, AssignRank):
                    self._on_seat(command)
                self._effects.carry_out(command)
            case wire.Keep(kept=left):
                self._keep(left)
