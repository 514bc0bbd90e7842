"""Feeds events into the machine and carries out what it asks for, in order.

Knows: the machine, the doors of `port`. Does not know: processes, sockets, terminals. Called by the agent of a host
(through a Protocol; neither imports the other) and joined to it by the command line.
"""

from collections import deque
from collections.abc import Sequence

from understudy.coordinator import orders
from understudy.coordinator.port import GenerationStore, Journal, MemoryGenerations, Port
from understudy.coordinator.recovery_clock import RecoveryClock
from understudy.foundation.clock import Clock
from understudy.foundation.ids import MemberId
from understudy.ledger.records import DecisionRecord, TransferRecord
from understudy.protocol import commands as cmd
from understudy.protocol.events import Event, JobStarted, StopRequested, Tick
from understudy.protocol.job import JobMachine
from understudy.wire.messages import FromAgent


class Coordinator:
    """Decides for one job. `handle` may be called again by a door that it is using: events are taken one by one."""

    def __init__(
        self,
        machine: JobMachine,
        *,
        port: Port,
        clock: Clock,
        journals: Sequence[Journal],
        generations: GenerationStore | None = None,
    ) -> None:
        self.machine = machine
        self._port, self._clock, self._journals = port, clock, tuple(journals)
        self._generations: GenerationStore = generations or MemoryGenerations()
        self._recovery_clock = RecoveryClock()
        self._waiting: deque[Event] = deque()
        self._busy = False

    # -- what the agent calls -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.handle(JobStarted(at=self._clock.now()))

    def tick(self) -> None:
        self.handle(Tick(at=self._clock.now()))

    def request_stop(self, reason: str, exit_code: int) -> None:
        self.handle(StopRequested(at=self._clock.now(), reason=reason, exit_code=exit_code))

    def next_deadline(self) -> float | None:
        return None if self.machine.stopped else self.machine.next_deadline()

    def lost_since(self, member: MemberId | None, at: float) -> None:
        """The first sign of a loss (None: of a stall) whose event follows; only for the times in the ledger."""
        self._recovery_clock.lost_since(member, at)

    def measured(self, generation: int, timings: dict[str, float], transfer: TransferRecord | None) -> None:
        """What a resuming member measured; only for the times in the ledger."""
        self._recovery_clock.measured(generation, timings, transfer)

    def handle(self, event: Event) -> None:
        self._waiting.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._advance(self._waiting.popleft())
        finally:
            self._busy = False

    # -- inside -------------------------------------------------------------------------------------------------------

    def _advance(self, event: Event) -> None:
        self._recovery_clock.on_event(event)
        for command in self.machine.handle(event):
            recovery = self._recovery_clock.on_command(event, command)
            self._carry_out(command)
            if recovery is not None:
                for journal in self._journals:
                    journal.append(recovery)

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.RecordGeneration():
                self._generations.record(command)
            case cmd.RecordDecision():
                self._note(command)
            case cmd.StartMember(member=member, rank=rank):
                self._port.start_member(member, rank)
            case cmd.AssignRank(member=member):
                self._port.send(member, orders.assign(command, self.machine.policy.world_size))
            case cmd.AbandonGeneration(members=members):
                self._tell(members, orders.abandon(command))
            case cmd.ResumeAt(members=members):
                self._tell(members, orders.resume(command))
            case cmd.ReleaseMembers(members=members):
                self._tell(members, orders.release(command))
            case cmd.KillMember(member=member, hang=hang, reason=reason):
                self._port.kill(member, hang=hang, reason=reason)
            case cmd.StopJob():
                self._port.stop(command)
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    def _tell(self, members: tuple[MemberId, ...], message: FromAgent) -> None:
        for member in members:
            self._port.send(member, message)

    def _note(self, decision: cmd.RecordDecision) -> None:
        record = DecisionRecord(
            at=decision.at,
            generation=decision.generation,
            kind=decision.kind.value,
            reason=decision.reason,
            rank=decision.rank,
            member=decision.member,
            step=decision.step,
        )
        for journal in self._journals:
            journal.append(record)
