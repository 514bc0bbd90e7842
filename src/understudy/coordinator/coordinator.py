"""Feeds events into the machine and carries out what it asks for, in order.

A generation must be durable before any process acts on it: while it is being written, whatever was decided later waits
in a queue, and events are still taken.

Knows: the machine, the interfaces of `effects`. Does not know: processes, sockets, terminals. Called by the agent of a
host (through a Protocol; neither imports the other) and joined to it by the command line.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from understudy.coordinator.effects import Effects, GenerationStore, Journal, Journals, MemoryGenerations
from understudy.coordinator.goodput_clock import GoodputClock
from understudy.coordinator.recovery_clock import RecoveryClock
from understudy.coordinator.steps import HostSteps
from understudy.foundation.clock import Clock
from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.ledger.goodput import Goodput
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol import commands as cmd
from understudy.protocol.events import Event, JobStarted, StopRequested, Tick
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.reasons import fields_of
from understudy.protocol.sentences import sentence
from understudy.protocol.takeover import facts_of
from understudy.wire.messages import Measured


class Coordinator:
    """Decides for one job. `handle` may be called again by an effect that it is using: events are taken one by one."""

    def __init__(
        self,
        machine: JobMachine,
        *,
        effects: Effects,
        clock: Clock,
        journals: Sequence[Journal],
        generations: GenerationStore | None = None,
        say: Callable[[str], None] = lambda _: None,
        devices: int = 0,
        accounts: Callable[[Goodput], None] = lambda _: None,
    ) -> None:
        """`say`: hears of a journal that fails. `devices`: of the only host, where it is the only one. `accounts`: is
        given the job's goodput at the start (a disk that takes nothing is found then), when a recovery has ended, and
        at the end."""
        self.machine, self._devices = machine, devices
        self._effects, self._clock, self._journals = effects, clock, Journals(journals, say)
        self._generations: GenerationStore = generations or MemoryGenerations()
        self._recovery_clock = RecoveryClock()
        self.steps = HostSteps(clock)
        self.goodput_clock, self._accounts = GoodputClock(), accounts
        self._waiting: deque[Event] = deque()
        self._orders: deque[cmd.Command | RecoveryRecord] = deque()
        self._bequests: dict[Rank, tuple[Generation, bytes]] = {}  # with the world to which it belongs
        self._bequests_until = float("-inf")
        self._busy = False
        self._writing = False
        self._recorded: cmd.RecordGeneration | None = None
        self.failed: BaseException | None = None  # why it must not decide any more
        self._on_failure: Callable[[BaseException], None] = lambda _: None

    # -- what the agent calls -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.handle(JobStarted(at=self._clock.now(), devices=self._devices))

    def tick(self) -> None:
        self.handle(Tick(at=self._clock.now()))

    def request_stop(self, reason: str, exit_code: int) -> None:
        self.handle(StopRequested(at=self._clock.now(), reason=reason, exit_code=exit_code))

    def next_deadline(self) -> float | None:
        return None if self.machine.stopped else self.machine.next_deadline()

    def lost_since(self, member: MemberId | None, at: float) -> None:
        """The first sign of a loss (None: of a stall) whose event follows; only for the times in the ledger."""
        self._recovery_clock.lost_since(member, at)

    def measured(self, told: Measured) -> None:
        """What a resuming member measured; only for the times in the ledger."""
        self._recovery_clock.measured(told)

    def advanced(self, smallest: int, largest: int) -> None:
        """What the ranks of the only host have committed; only to be shown."""
        self.steps.told(THIS_HOST, smallest, largest)

    def inherited(self, member: MemberId, bequest: bytes) -> None:
        """What a member leaves to its replacement."""
        known = self.machine.roster.members.get(member)
        if known is not None and known.rank is not None:
            self.inherited_of(known.rank, self.machine.round.state.founded_in, bequest)

    def inherited_of(self, rank: Rank, world: Generation, bequest: bytes) -> None:
        """The same, when the member may not be known any more. `world`: the generation in which it was founded."""
        if world >= self._bequests.get(rank, (Generation(0), b""))[0]:
            self._bequests[rank] = world, bequest

    def expect_bequests_until(self, at: float) -> None:
        """After a takeover hosts tell again what ranks left: until then no rank is given away without it."""
        self._bequests_until = at

    def when_failed(self, listener: Callable[[BaseException], None]) -> None:
        self._on_failure = listener

    def fail(self, error: BaseException) -> None:
        """It must not decide any more: what it would do next was not recorded, or another coordinator leads."""
        if self.failed is None:
            self.failed = error
            self._orders.clear()
            self._waiting.clear()
            self._on_failure(error)

    def begin_with(self, commands: Iterable[cmd.Command], active: Mapping[Rank, MemberId]) -> None:
        """What a machine that took over wants first. `active`: the members that trained when last heard of."""
        self._recovery_clock.took_over(active)
        self._order(Tick(at=self._clock.now()), commands)
        self._go_on()

    def handle(self, event: Event) -> None:
        if self.failed is None:
            self._waiting.append(event)
            self._go_on()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Called again by an effect that it is using, it does nothing: the loop below comes to the new event."""
        if self._busy:
            return
        self._busy = True
        try:
            self._carry_on()
            while self._waiting:
                self._advance(self._waiting.popleft())
                self._carry_on()
        finally:
            self._busy = False

    @property
    def goodput(self) -> Goodput:
        """Up to now."""
        return self.goodput_clock.at(self._clock.now(), self.machine)

    def _advance(self, event: Event) -> None:
        self.goodput_clock.before(event, self.machine, self.steps)
        self._recovery_clock.on_event(event)
        self._order(event, self.machine.handle(event))

    def _order(self, event: Event, commands: Iterable[cmd.Command]) -> None:
        for command in commands:
            recovery = self._recovery_clock.on_command(event, command)
            self.goodput_clock.on_command(command)
            if isinstance(command, cmd.StopJob) or _starts(command):
                self._accounts(self.goodput)
            self._orders.append(command)
            if recovery is not None:
                self._orders.append(recovery)

    def _carry_on(self) -> None:
        while self._orders and not self._writing and self.failed is None:
            order = self._orders.popleft()
            if isinstance(order, RecoveryRecord):
                self._journals.append(order)
                self._accounts(self.goodput)
                if self._recorded is not None:
                    self._record(self._recorded)  # once more: what is kept tells of recoveries too
            elif not isinstance(order, cmd.RecordGeneration):
                self._carry_out(order)
            else:
                self._record(order)

    def _record(self, generation: cmd.RecordGeneration) -> None:
        """With all that the machine knows by now, which may be more than when it asked for this."""
        self._recorded = generation
        written = self._generations.record(generation, lambda: facts_of(self.machine, self._clock.now()))
        if written is not None:
            self._writing = True
            written.add_done_callback(self._on_written)

    def _on_written(self, written: "asyncio.Future[None]") -> None:
        self._writing = False
        if written.cancelled():
            self.fail(RuntimeError("a generation was not recorded: its writing was cancelled"))
        elif (error := written.exception()) is not None:
            self.fail(error)
        else:
            self._go_on()

    def _carry_out(self, command: cmd.Command) -> None:
        """What only a coordinator knows is filled in: addresses of stores, and what ranks left."""
        match command:
            case cmd.RecordDecision():
                self._note(command)
            case cmd.StartMember(seat=cmd.Seat() as seat):
                placed = replace(seat, store_address=self._store_of(seat.store))
                self._effects.carry_out(structs.replace(command, seat=placed))
            case cmd.AssignRank():
                self._assign(command)
            case cmd.ResumeAt():
                self.steps.resumes(command.generation, command.step)
                self._effects.carry_out(structs.replace(command, store_address=self._store_of(command.store)))
            case _:
                assert isinstance(command, cmd.ToAgent), f"no way to carry out {command!r}"
                self._effects.carry_out(command)

    def _assign(self, command: cmd.AssignRank) -> None:
        world, bequest = self._bequests.get(command.rank, (None, b""))
        left = bequest if world == command.founded_in and not command.founding else b""
        if not left and not command.founding and self._clock.now() < self._bequests_until:
            return  # the machine says it again before long
        filled = structs.replace(command, store_address=self._store_of(command.store), bequest=left)
        self._effects.carry_out(filled)

    def _store_of(self, host: HostId) -> str:
        """Where its c10d store listens; empty where workers know it anyway."""
        known = self.machine.hosts.by_id.get(host)
        return "" if known is None else known.store

    def _note(self, decision: cmd.RecordDecision) -> None:
        record = DecisionRecord(
            at=decision.at,
            generation=decision.generation,
            kind=decision.kind.value,
            reason=sentence(decision.reason),
            code=decision.reason.code,
            fields=fields_of(decision.reason),
            rank=decision.rank,
            member=decision.member,
            step=decision.step,
        )
        self._journals.append(record)


def _starts(command: cmd.Command) -> bool:
    return isinstance(command, cmd.RecordDecision) and command.kind is cmd.DecisionKind.START
