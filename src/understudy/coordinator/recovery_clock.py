"""How long each phase of a recovery took. It listens to the same events and commands as others; it decides nothing.

detect    from the first sign of the loss, where one is known, to the event that opened the recovery. Of a lost host the
          first sign is the end of its connection; the transport may have needed up to 2 s to notice that
approach  of a move: from the choice of a boundary until the first rank came to it; training goes on
stop      opened (of a move: the first rank stopped), until the last survivor reported its position
rehearse  a rank assigned, until its joiner was prepared (the longest)
regroup, transfer   as the members measured them (the longest)
resume    verdict, until all had resumed
total     detect (of a move: the first rank stopped), until all had resumed
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy.foundation.ids import Generation, HostId, MemberId, Rank
from understudy.ledger.records import RecoveryRecord, TransferRecord
from understudy.protocol import events as ev
from understudy.protocol.commands import Command, DecisionKind, RecordDecision, RecordGeneration
from understudy.protocol.reasons import Reason
from understudy.protocol.sentences import sentence
from understudy.wire.messages import Measured

_OPENING = (DecisionKind.SWAP, DecisionKind.ALARM, DecisionKind.MOVE, DecisionKind.RESTART)
_MEASURED_BY_MEMBERS = ("regroup", "transfer")


@dataclass(slots=True)
class _Running:
    """What is known of the recovery under way. A new fault adds a reason and a generation; the clock runs on."""

    opened_at: float
    detected_in: float | None
    first_generation: Generation
    generation: Generation
    before: dict[Rank, MemberId]
    benched: frozenset[MemberId]  # lived without taking part, so that they report before training stops
    reasons: list[Reason] = field(default_factory=list)
    verdict: str = ""
    verdict_at: float | None = None
    first_reported_at: float | None = None
    reported_at: float | None = None
    planned: bool = False  # it began with a move, and nothing has happened to it since
    assigned_at: dict[MemberId, float] = field(default_factory=dict)
    prepared_in: dict[MemberId, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    transfers: list[TransferRecord] = field(default_factory=list)


class RecoveryClock:
    def __init__(self) -> None:
        self._holders: dict[Rank, MemberId] = {}
        self._benched: frozenset[MemberId] = frozenset()
        self._lost_since: dict[MemberId | None, float] = {}
        self._silent_since: dict[HostId, float] = {}
        self._running: _Running | None = None

    def took_over(self, active: Mapping[Rank, MemberId]) -> None:
        """Any other member with a rank when the next recovery ends came in it, or in one whose end was not seen."""
        self._holders = dict(active)

    def lost_since(self, member: MemberId | None, at: float) -> None:
        """The first sign of a loss (None: of a stall) whose event is still to come."""
        self._lost_since[member] = at

    def measured(self, told: Measured) -> None:
        """What a member that has resumed says of its own phases."""
        running = self._running
        if running is None or told.generation != running.generation:
            return
        for phase in _MEASURED_BY_MEMBERS:
            if phase in told.timings:
                running.measured[phase] = max(running.measured.get(phase, 0.0), told.timings[phase])
        if told.transfer is not None:
            running.transfers.append(told.transfer)

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.HostSilent(at=at, host=host):
                self._silent_since.setdefault(host, at)
            case ev.HostHeard(host=host) | ev.HostJoined(host=host):
                self._silent_since.pop(host, None)
        if self._running is not None:
            self._on_event_of(self._running, event)

    @staticmethod
    def _on_event_of(running: _Running, event: ev.Event) -> None:
        match event:
            case ev.PositionReported(at=at, member=member, generation=generation):
                took_part = member not in running.assigned_at and member not in running.benched
                if generation == running.generation and took_part:
                    running.reported_at = at
                    if running.first_reported_at is None:
                        running.first_reported_at = at
            case ev.MemberPrepared(at=at, member=member):
                if member in running.assigned_at:
                    running.prepared_in.setdefault(member, at - running.assigned_at[member])

    def on_command(self, event: ev.Event, command: Command) -> RecoveryRecord | None:
        """Takes every command of `event`; returns the record when the recovery has ended with it."""
        match command:
            case RecordDecision(kind=kind) if kind in _OPENING:
                self._open(event, command)
            case RecordDecision(kind=DecisionKind.START_OVER):
                self._running = None
            case RecordDecision(kind=DecisionKind.VERDICT | DecisionKind.REWIND) if self._running is not None:
                self._running.verdict, self._running.verdict_at = sentence(command.reason), event.at
            case RecordDecision(kind=DecisionKind.RESUMED) if self._running is not None:
                return self._close(self._running, command)
            case RecordGeneration(holders=holders, absent=absent):
                self._on_generation(event.at, dict(holders), absent)
        return None

    def _open(self, event: ev.Event, decision: RecordDecision) -> None:
        since = self._lost_since.pop(decision.member, None)
        if since is None and decision.kind is DecisionKind.SWAP and decision.member is None:
            since = min(self._silent_since.values(), default=None)  # a host was lost
            self._silent_since.clear()
        self._lost_since.clear()
        if self._running is None:
            self._running = _Running(
                opened_at=event.at,
                detected_in=None if since is None else max(0.0, event.at - since),
                first_generation=decision.generation,
                generation=decision.generation,
                before=dict(self._holders),
                benched=self._benched,
            )
        running = self._running
        running.generation = decision.generation
        running.reasons.append(decision.reason)
        running.reported_at = running.first_reported_at = running.verdict_at = None
        running.planned = decision.kind is DecisionKind.MOVE
        running.measured.clear()
        running.transfers.clear()

    def _on_generation(self, at: float, holders: dict[Rank, MemberId], absent: tuple[Rank, ...]) -> None:
        """A member that prepares for an absent rank has it when that comes back."""
        before = self._holders
        self._benched = frozenset(member for rank, member in holders.items() if rank in absent)
        holders = {rank: member for rank, member in holders.items() if rank not in absent}
        holders |= {rank: before[rank] for rank in absent if rank in before}
        if self._running is not None:
            for rank, member in holders.items():
                if self._running.before.get(rank) != member:
                    self._running.assigned_at.setdefault(member, at)
        self._holders = holders

    def _close(self, running: _Running, decision: RecordDecision) -> RecoveryRecord:
        self._running = None
        at = decision.at
        phases: dict[str, float] = {}
        if running.detected_in is not None:
            phases["detect"] = running.detected_in
        began = running.opened_at
        if running.planned and running.first_reported_at is not None:
            began = running.first_reported_at  # until then training went on
            phases["approach"] = began - running.opened_at
        if running.reported_at is not None:
            phases["stop"] = running.reported_at - began
        swaps = tuple(
            (int(rank), running.before.get(rank), member)
            for rank, member in sorted(self._holders.items())
            if running.before.get(rank) != member
        )
        rehearsals = [running.prepared_in[member] for _, _, member in swaps if member in running.prepared_in]
        if rehearsals:
            phases["rehearse"] = max(rehearsals)
        phases |= running.measured
        if running.verdict_at is not None:
            phases["resume"] = at - running.verdict_at
        phases["total"] = at - began + (running.detected_in or 0.0)
        return RecoveryRecord(
            at=at,
            opened_at=running.opened_at,
            first_generation=running.first_generation,
            generation=running.generation,
            step=decision.step if decision.step is not None else -1,
            reasons=tuple(map(sentence, running.reasons)),
            codes=tuple(reason.code for reason in running.reasons),
            verdict=running.verdict,
            swaps=swaps,
            phases=phases,
            transfers=tuple(running.transfers),
            planned=running.planned,
        )
