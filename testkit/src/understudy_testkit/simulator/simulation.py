"""One seeded run on a virtual clock: an event queue, a lossy network, faults that fire, a stall detector.

Everything random comes from the `Random` that is passed in, so a seed repeats a run exactly. Knows durations and
probabilities; all decisions are the machine's. A run ends with the machine's `StopJob`, or as a `Violation` when an
invariant breaks or the job does not come to an end.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from understudy.foundation.ids import MemberId
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import AbandonGeneration, Command, KillMember
from understudy.protocol.job import JobMachine
from understudy.protocol.liveness import Condition, Sighting, is_gone
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code
from understudy.protocol.requests import Request
from understudy_testkit.simulator.faults import AT_ONCE, NAMES, Fault, FaultKind, Moment
from understudy_testkit.simulator.invariants import Violation
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.network import Network, Weather
from understudy_testkit.simulator.observing import QUIET, check_kill, check_neglect, sighting_of, suspicious
from understudy_testkit.simulator.phases import MEETING_PHASES, Meeting, MemberPhase
from understudy_testkit.simulator.reasons import why_stop_is_wrong
from understudy_testkit.simulator.script import Script
from understudy_testkit.simulator.world import World

DURATIONS: dict[MemberPhase, tuple[float, float]] = {
    MemberPhase.STARTING: (1.0, 4.0),
    MemberPhase.IDLE: (0.1, 0.5),
    MemberPhase.SETUP: (0.2, 1.0),
    MemberPhase.REHEARSING: (0.5, 2.0),
    MemberPhase.COMPUTING: (0.05, 0.15),
    MemberPhase.COLLECTIVE: (0.0, 0.05),
    MemberPhase.ARRIVING: (0.0, 0.02),
    MemberPhase.FENCE: (0.0, 0.03),
    MemberPhase.CONFIRMING: (0.0, 0.02),
    MemberPhase.APPLYING: (0.005, 0.02),
    MemberPhase.ESTABLISHING: (0.0, 0.01),
    MemberPhase.BETWEEN: (0.0, 0.002),
    MemberPhase.EVALUATING: (0.0, 0.05),
    MemberPhase.APPLYING_VERDICT: (0.005, 0.02),
    MemberPhase.DRAINING: (0.0, 0.1),
    MemberPhase.REGROUPING: (0.0, 0.05),
    MemberPhase.AWAITING: (0.0, 0.3),
    MemberPhase.RECEIVING: (0.1, 0.5),
    MemberPhase.FINISHED: (1.0, 1.0),
    MemberPhase.LEAVING: (0.0, 0.2),
}
"""Seconds in a place; for a meeting, from its completion until a member has noticed it."""

WAIT_AT_MEETING = 0.1  # about as long as the fastest rank waits for the slowest

LOOK_EVERY = 1.0  # seconds between two looks of an agent
OPERATOR_AFTER = 400.0  # seconds until an operator ends a process that hangs and that the machine may not end
NOTICED_AFTER = 0.05  # seconds until an agent has seen that a member moves again
LONGEST_GAP = 16.0  # seconds between two tellings of the same
CLOSELY_FOR = 5.0  # seconds for which an agent tells what it sees, once it was asked
PASSING = frozenset({FaultKind.PAUSE, FaultKind.SLEEP, FaultKind.STOP, FaultKind.TRACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run counts as endless."""

    seconds: float = 20_000.0
    events: int = 400_000


class Simulation(World):
    def __init__(
        self,
        script: Script,
        policy: Policy,
        *,
        chance: Random,
        faults: tuple[Fault, ...] = (),
        weather: Weather | None = None,
        limits: Limits | None = None,
        requests: Sequence[Request] = (),
    ) -> None:
        super().__init__(script, JobMachine(policy))
        self.policy = policy
        self.chance = chance
        self.network = Network(weather or Weather(), chance)
        self.limits = limits or Limits()
        self.pending = list(faults)
        self.requests = tuple(requests)
        self.fired: Counter[str] = Counter()
        self.events = 0
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._waiting: dict[Meeting, list[SimulatedMember]] = {}
        self._number = 0
        self._tick_at: float | None = None
        self.moved_at: dict[MemberId, float] = {}
        self.ended_at: dict[MemberId, float] = {}
        self._closely_until = float("-inf")
        self.livelocked = False
        self.gives_up_after: float | None = (
            None  # a seeded bug: survivors of a fault end themselves when no coordinator leads
        )
        self._told_trouble = False
        self._told: frozenset[tuple[MemberId, Condition, bool]] = frozenset()
        self._told_at, self._gap = float("-inf"), LOOK_EVERY

    @property
    def now(self) -> float:
        return self._now

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play until the job has stopped. Raises `Violation` if an invariant breaks."""
        self._begin()
        self.later(LOOK_EVERY, self._observe)
        while self.outcome is None:
            if not self._queue:
                raise Violation(f"7: nothing can happen any more in stage {self.machine.stage.value}")
            self._now, _, action, arguments = heapq.heappop(self._queue)
            self.events += 1
            if self._now > self.limits.seconds or self.events > self.limits.events:
                raise Violation(f"7: no end after {self._now:.0f} s and {self.events} events")
            action(*arguments)
        wrong = why_stop_is_wrong(self.outcome, self)
        if wrong is not None:
            raise Violation(f"7: {wrong}")

    def _begin(self) -> None:
        self._announce_requests()
        self.tell_machine(ev.JobStarted(at=0.0))

    def _announce_requests(self) -> None:
        for request in self.requests:
            self._at(request.at, self.tell_machine, request)

    def later(self, delay: float, action: Callable[..., None], *arguments: object) -> None:
        self._at(self._now + delay, action, *arguments)

    def _at(self, at: float, action: Callable[..., None], *arguments: object) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at, self._number, action, arguments))

    # -- the machine --------------------------------------------------------------------------------------------------

    def tell_machine(self, event: ev.Event) -> None:
        self.handle(event)
        self._plan_tick()

    def _plan_tick(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and (self._tick_at is None or deadline < self._tick_at):
            self._tick_at = max(deadline, self._now)
            self._at(self._tick_at, self._tick, self._tick_at)

    def _tick(self, planned: float) -> None:
        if self._tick_at == planned:
            self._tick_at = None
            self.tell_machine(ev.Tick(at=self._now))

    # -- what agents see ----------------------------------------------------------------------------------------------

    def on_watch_closely(self) -> None:
        self._closely_until = self._now + CLOSELY_FOR

    def _observe(self) -> None:
        self._look_around()
        self.later(LOOK_EVERY, self._observe)

    def _look_around(self) -> None:
        """Told when something is wrong, when it was asked for, and once more when all is well again."""
        if self.gives_up_after is not None:
            self._give_up(self.gives_up_after)
        seen = [sighting for member in self.members.values() if (sighting := self._sighting(member)) is not None]
        wrong, closely = suspicious(seen), self._now < self._closely_until
        conditions = frozenset((each.member, each.condition, is_gone(self.policy, each)) for each in seen)
        changed = conditions != self._told
        due = changed or closely or self._now >= self._told_at + self._gap
        if (wrong and due) or closely or (self._told_trouble and not wrong):
            self._gap = LOOK_EVERY if changed or closely else min(LONGEST_GAP, 2 * self._gap)
            self._told, self._told_at = conditions, self._now
            self.tell_sightings(seen)
        self._told_trouble = wrong

    def _give_up(self, after: float) -> None:
        """A seeded bug: a member that has waited so long for a rank that is gone ends itself."""
        for member in list(self.members.values()):
            waits = member.alive and member.phase in MEETING_PHASES and member.heard == member.acting
            if waits and self._now - self.moved_at.get(member.id, self._now) > after:
                self.end(member, _script_error(member))

    def _sighting(self, member: SimulatedMember) -> Sighting | None:
        return sighting_of(member, self._now, self.moved_at.get(member.id, 0.0))

    def tell_sightings(self, seen: list[Sighting]) -> None:
        self.tell_machine(ev.ActivityObserved(at=self._now, sightings=tuple(seen)))

    def kill_for(self, member: SimulatedMember, command: KillMember) -> None:
        if member.alive and command.hang and command.reason.code != Code.REQUESTED:
            check_kill(self, member)
        super().kill_for(member, command)

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, member: SimulatedMember, event: ev.Event) -> None:
        at = self.network.arrival(self._now, member.id, event, upward=True)
        if at is not None:
            self._at(at, self._receive, event)

    def _receive(self, event: ev.Event) -> None:
        self.tell_machine(event)

    def transmit(self, member: SimulatedMember, command: Command) -> None:
        at = self.network.arrival(self._now, member.id, command, upward=False)
        if at is not None:
            self._at(at, self._deliver, member, command)

    def _deliver(self, member: SimulatedMember, command: Command) -> None:
        if not member.alive or member.hung:
            return
        if self._now < member.halted_until:  # it reads what has come when it goes on
            self._at(member.halted_until, self._deliver, member, command)
            return
        if self.pending and isinstance(command, AbandonGeneration) and command.generation > member.heard:
            self._strike(Moment.STOP, member)
            if not member.alive or member.hung:
                return
        before = member.ticket
        member.hear(command, self)
        self._follow(member, before)

    # -- members ------------------------------------------------------------------------------------------------------

    def on_started(self, member: SimulatedMember) -> None:
        self.moved_at[member.id] = self._now
        self._schedule(member)
        self._strike(None, member)

    def end(self, member: SimulatedMember, cause: Cause) -> None:
        if member.alive:
            self.ended_at[member.id] = self._now
        super().end(member, cause)

    def on_gone(self, member: SimulatedMember, cause: Cause) -> None:
        delay = self.chance.uniform(0.001, 0.1)
        self.later(delay, lambda: self.tell_machine(ev.MemberLost(at=self._now, member=member.id, cause=cause)))

    def _move(self, member: SimulatedMember, ticket: int) -> None:
        if member.ticket != ticket or member.hung or not member.can_move(self):
            return
        held_until = max(member.halted_until, member.busy_until)
        if self._now < held_until:
            self._at(held_until, self._move, member, ticket)
            return
        was_silent = self._now - self.moved_at.get(member.id, self._now) > QUIET
        member.move(self)
        if was_silent and self._told_trouble:
            self.later(NOTICED_AFTER, self._look_around)
        if member.phase is not MemberPhase.FINISHED:
            self.moved_at[member.id] = self._now
        if member.ticket != ticket:
            self._follow(member, ticket)
        elif member.phase is MemberPhase.FINISHED:
            self._schedule(member)

    def _follow(self, member: SimulatedMember, before: int) -> None:
        """A member may have come to a new place: plan its next move there, and let faults strike."""
        if member.ticket == before or not member.alive:
            return
        self.moved_at[member.id] = self._now
        if member.phase not in MEETING_PHASES:
            self._schedule(member)
        if self.pending:
            self._strike(None, member)
            if member.phase in (MemberPhase.AWAITING, MemberPhase.RECEIVING):
                giver = self.donor(member)
                if giver is not None:
                    self._strike(Moment.DONATE, giver)

    def _schedule(self, member: SimulatedMember) -> None:
        duration = DURATIONS.get(member.phase)
        if duration is not None:
            low, high = duration
            if member.phase is MemberPhase.RECEIVING:
                low, high = low + self.script.transfer_seconds, high + self.script.transfer_seconds
            self.later(low + (high - low) * self.chance.random(), self._move, member, member.ticket)

    def is_complete(self, meeting: Meeting) -> bool:
        return super().is_complete(meeting) and not (self.livelocked and meeting[1] == MemberPhase.COLLECTIVE.value)

    def arrive(self, member: SimulatedMember, meeting: Meeting) -> None:
        super().arrive(member, meeting)
        waiting = self._waiting.setdefault(meeting, [])
        waiting.append(member)
        if self.is_complete(meeting):
            for guest in waiting:
                if guest.meeting == meeting:
                    self._schedule(guest)
            del self._waiting[meeting]

    # -- faults -------------------------------------------------------------------------------------------------------

    def _strike(self, moment: Moment | None, member: SimulatedMember) -> None:
        for fault in self.pending:
            if fault.matches(moment, member):
                self.pending.remove(fault)
                if fault.moment in AT_ONCE:
                    self._hit(fault, member, member.ticket)
                else:
                    stay = DURATIONS.get(member.phase, (0.01, 0.01))[0] or WAIT_AT_MEETING
                    self.later(self.chance.random() * stay, self._hit, fault, member, member.ticket)
                return

    def _hit(self, fault: Fault, member: SimulatedMember, ticket: int) -> None:
        if not self._can_be_hit(fault, member):
            return
        known = self.machine.roster.members.get(member.id)
        if fault.moment is Moment.IDLE_SPARE and fault.kind in PASSING and (known is None or known.rank is not None):
            self.pending.append(fault)  # it was a founding member that had not been told its rank
            return
        name = fault.moment.value if member.ticket == ticket else NAMES[member.phase]
        self.fired[name] += 1
        victims = [member]
        if fault.also is not None:
            second = self._holder(fault)
            if second is not None and second is not member:
                victims.append(second)
                self.fired["two at once"] += 1
        if fault.all_ranks:
            ranks = (other for other in self.members.values() if other.rank is not None)
            victims = [other for other in ranks if self._can_be_hit(fault, other)]
        self.state_was_damaged |= fault.kind in (FaultKind.FLIP, FaultKind.SPOIL)
        for victim in victims:
            self.story.append(f"fault: {fault.kind.value} {victim.id} (rank {victim.rank}) {victim.phase.value}")
            if fault.kind is FaultKind.FLIP:
                victim.corrupt = victim.state is not None
                self.fired["flip"] += 1
            elif fault.kind is FaultKind.SPOIL:
                victim.spoilt = victim.state is not None
                self.fired["spoil"] += 1
            elif fault.kind is FaultKind.POISON:
                victim.poisoned = True
                self.fired["poison"] += 1
            elif fault.kind is FaultKind.HANG:
                victim.hung, victim.halted_since = True, self._now
                victim.halted = self.chance.choice((Condition.STOPPED, Condition.DEAF))
                self.fired["hang"] += 1
                self.later(OPERATOR_AFTER, self._end_by_hand, victim)
            elif fault.kind in PASSING:
                self._hold_up(fault, victim)
            elif fault.kind is FaultKind.ERROR:
                self.fired["script error"] += 1
                self.end(victim, _script_error(victim))
            elif fault.kind is FaultKind.LIVELOCK:
                self.fired["livelock"] += 1
                self.livelocked = True
            else:
                cause = Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9, step=victim.holds)
                self.end(victim, cause)

    def _end_by_hand(self, victim: SimulatedMember) -> None:
        """The machine never ends the last holder of a state for hanging. Sooner or later an operator does, after
        reading why."""
        if victim.alive:
            check_neglect(self, victim)
            self.fired["ended by hand"] += 1
            self.end(victim, Cause(kind=CauseKind.SIGNAL, detail="killed by signal 9", exit_code=-9, step=victim.holds))

    def _hold_up(self, fault: Fault, victim: SimulatedMember) -> None:
        """It passes by itself."""
        self.fired[fault.kind.value] += 1
        until = self._now + fault.lasts
        if fault.kind in (FaultKind.PAUSE, FaultKind.SLEEP):
            victim.busy_since = self._now
            victim.busy_until, victim.sleeps = until, fault.kind is FaultKind.SLEEP
            return
        victim.halted_since, victim.halted_until = self._now, until
        victim.halted = Condition.TRACED if fault.kind is FaultKind.TRACE else Condition.STOPPED

    def _holder(self, fault: Fault) -> SimulatedMember | None:
        for member in self.members.values():
            if member.rank == fault.also and self._can_be_hit(fault, member):
                return member
        return None

    def _can_be_hit(self, fault: Fault, member: SimulatedMember) -> bool:
        """A script that hangs after its last step is its author's business: no such hangs here."""
        if fault.kind is FaultKind.LIVELOCK and not member.established:
            return False
        over = member.phase in (MemberPhase.FINISHED, MemberPhase.LEAVING) and fault.kind is FaultKind.HANG
        return member.alive and not member.hung and not over


def _script_error(member: SimulatedMember) -> Cause:
    words = "OSError: the file system is away"
    return Cause(kind=CauseKind.SCRIPT_ERROR, detail=words, exit_code=1, step=member.holds, fingerprint="away")
