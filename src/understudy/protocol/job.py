"""The state machine of one job: events in, commands out.

    FOUNDING ──first step committed──▶ TRAINING ──loss or stall──▶ STOPPING ──all reported──▶ FORMING ─┐
        ▲                                 ▲  ▲                        ▲  │                       │     │
        └───────── start over ────────────┼──┼────────────────────────┼──┘        loss, failure  │     │
                                          │  └────────────────────────┼───────────────────────────     │
                                          │                           └────────────────────────────────┤
                                          └────────────────── all resumed ─────────────────────────────┘
    any ──▶ STOPPED

Knows: who holds which rank, what each said last, what is awaited. Does not know: processes, sockets, tensors, time
(other than the `at` of events). Called by the coordinator and, unchanged, by the simulator. The handling of a running
recovery is in `recovery`, of the pool in `pool`; this file joins them.

A new loss in any stage opens the next generation and begins again at STOPPING; every stage can be repeated.
Every event costs the same however many ranks there are, except the two that speak to all of them (a new generation
and a verdict), which are linear.
"""

from dataclasses import replace

from understudy.foundation.ids import Generation, MemberId, Rank
from understudy.protocol import events as ev
from understudy.protocol import lateness
from understudy.protocol.agreement import Agreement
from understudy.protocol.attendance import host_heard, host_joined, host_silent, hosts_lost
from understudy.protocol.blame import Blame
from understudy.protocol.commands import (
    Command,
    DecisionKind,
    KillMember,
    Outcome,
    RecordDecision,
    ReleaseMembers,
    StartMember,
    StopJob,
)
from understudy.protocol.granting import grant, refusal
from understudy.protocol.hosts import THIS_HOST, Hosts
from understudy.protocol.ladder import (
    Ladder,
    begin_anew,
    begin_restart_if_stuck,
    give_up_restart_without_state,
    go_on_without_the_vacant,
    make_whole_if_possible,
    refusals,
    why_not_degraded,
)
from understudy.protocol.losses import on_lost
from understudy.protocol.migration import Migration
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.probation import on_all_resumed, on_bad_state
from understudy.protocol.recovery import Recovery, Unfit
from understudy.protocol.requests import Request
from understudy.protocol.roster import Member, Roster
from understudy.protocol.rungs import Rung
from understudy.protocol.stages import Stage
from understudy.protocol.telling_apart import on_digest
from understudy.protocol.watchdog import Watchdog, no_progress, on_contact_lost, on_sightings
from understudy.protocol.watchdog import on_tick as watchdog_on_tick


class JobMachine:
    """See the module's text. `handle` is the only door; `next_deadline` says when a `Tick` is wanted."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.roster = Roster()
        self.hosts = Hosts()
        self.recovery = Recovery(policy, self.roster, self.hosts)
        self.pool = SparePool(policy, self.roster, self.hosts)
        self.migration = Migration(policy, self.roster, self.recovery, self.pool)
        self.agreement = Agreement()
        self.ladder = Ladder()
        self.blame = Blame(policy.max_deaths_per_step)
        self.watchdog = Watchdog()
        self.finished: set[MemberId] = set()
        self.left: set[Rank] = set()
        self.released = False
        self.stopped: StopJob | None = None
        self.refill_at: float | None = None
        self._now = 0.0  # of the newest event

    @property
    def stage(self) -> Stage:
        return Stage.STOPPED if self.stopped else self.recovery.stage

    @property
    def generation(self) -> Generation:
        return self.recovery.generation

    def copy(self) -> "JobMachine":
        twin = JobMachine(self.policy)
        twin.roster, twin.hosts = self.roster.copy(), self.hosts.copy()
        twin.recovery = self.recovery.copy(twin.roster, twin.hosts)
        twin.pool = self.pool.copy(twin.roster, twin.hosts)
        twin.migration = self.migration.copy(twin.roster, twin.recovery, twin.pool)
        twin.agreement, twin.ladder = self.agreement.copy(), self.ladder.copy()
        twin.blame, twin.watchdog = self.blame.copy(), self.watchdog.copy()
        twin.finished, twin.left, twin.released = set(self.finished), set(self.left), self.released
        twin.stopped, twin.refill_at, twin._now = self.stopped, self.refill_at, self._now
        return twin

    def handle(self, event: ev.Event) -> tuple[Command, ...]:
        """Take one event; return what is to be done, in order."""
        if self.stopped:
            return ()
        self._now = max(self._now, event.at)
        return self._noting_the_end(self._dispatch(event))

    def _noting_the_end(self, commands: list[Command]) -> tuple[Command, ...]:
        for command in commands:
            if isinstance(command, StopJob):
                self.stopped = command
        return tuple(commands)

    def next_deadline(self) -> float | None:
        if self.stopped:
            return None
        if self.released:
            return self._host_deadline()  # a script may take its time to end
        waits = (
            lateness.next_deadline(self.recovery),
            self.refill_at,
            self._host_deadline(),
            self.migration.next_deadline(),
            self.watchdog.next_deadline(),
        )
        deadlines = [deadline for deadline in waits if deadline is not None]
        return min(deadlines, default=None)

    def _host_deadline(self) -> float | None:
        return self.hosts.next_deadline(self._now, self.policy.takeover_patience)

    def _dispatch(self, event: ev.Event) -> list[Command]:
        match event:
            case ev.JobStarted():
                self.hosts.join(THIS_HOST, self.policy.world_size, self.policy.spares)
                return self.begin(event.at)
            case ev.HostJoined():
                return host_joined(self, event)
            case ev.HostSilent() | ev.HostHeard() if event.host not in self.hosts.by_id:
                return []
            case ev.HostSilent():
                return host_silent(self, event)
            case ev.HostHeard():
                return host_heard(self, event)
            case Request():
                return grant(self, event)
            case ev.StopRequested():
                return self.stop(event.at, Outcome.STOPPED, event.reason, event.exit_code)
            case ev.Tick():
                return self._on_tick(event.at)
            case ev.PaceLearnt():
                self.recovery.pace = event.pace
                return []
            case ev.ActivityObserved():
                return on_sightings(self, event)
        member = self.roster.members.get(getattr(event, "member", MemberId("")))
        if member is None:
            return self._refuse(event)
        match event:
            case ev.MemberConnected():
                return self.recovery.on_connected(member)
            case ev.MemberParked():
                return self._on_parked(event.at, member)
            case ev.MemberEstablished():
                return self._on_established(event, member)
            case ev.MemberLost():
                return on_lost(self, event.at, member, event.cause)
            case ev.DigestTold():
                return on_digest(self, event, member)
            case ev.BadStateTold():
                return on_bad_state(self, event, member)
            case ev.PositionReported():
                return self.after(event.at, self.recovery.on_position(event, member))
            case ev.MemberPrepared():
                self.recovery.on_prepared(event, member)
                return self.after(event.at, self._go_on_moving(event.at))
            case ev.CheckpointsTold():
                return self.after(event.at, self.recovery.on_checkpoints(event, member))
            case ev.ContactLost():
                return on_contact_lost(self, event, member)
            case ev.StepTold():
                return self._on_step_told(event)
            case ev.MemberResumed():
                return self._on_resumed(event, member)
            case ev.RecoveryFailed():
                return self._on_recovery_failed(event, member)
            case ev.MemberFinished():
                return self._on_finished(event, member)
        raise AssertionError(f"no rule for {event!r}")

    # -- beginning ------------------------------------------------------------------------------------------------

    def begin(self, at: float) -> list[Command]:
        commands = self.recovery.found(at, self.pool, "the job begins")
        self.watchdog.world_founded(at)
        commands += self.pool.refill(at, self.generation, first=True)
        return commands

    def refill(self, at: float, reason: str) -> list[Command]:
        """What is started is recorded first, so that whoever takes over knows it and gives no name twice. A host that
        is under suspicion gets its spares when that is over."""
        commands = self.pool.refill(at, self.generation, reason)
        self.refill_at = self.pool.next_chance(at)
        started = any(isinstance(command, StartMember) for command in commands)
        return [self.recovery.record(), *commands] if started else commands

    def refill_soon(self, at: float) -> None:
        if self.stage is Stage.TRAINING and self.refill_at is None and self.pool.is_low(at):
            self.refill_at = at + self.policy.refill_delay

    # -- first steps --------------------------------------------------------------------------------------------------

    def _on_established(self, event: ev.MemberEstablished, member: Member) -> list[Command]:
        if event.generation != self.recovery.founded_in:
            return []
        commands = self.recovery.on_established(event, member)
        if self.refill_at is None and self.stage is Stage.TRAINING:
            self.refill_soon(event.at)  # a world that started over has taken its spares along
        return commands

    # -- opening the next generation -------------------------------------------------------------------------------

    def open(
        self,
        at: float,
        reason: str,
        kind: DecisionKind,
        exit_code: int = 1,
        rank: Rank | None = None,
        member: MemberId | None = None,
    ) -> list[Command]:
        """Open the next generation, or stop the job when it cannot be manned, or when that has not helped before."""
        if kind is DecisionKind.ALARM and self.stage is Stage.TRAINING:
            standing_still = no_progress(self, at, reason)
            if standing_still is not None:
                return standing_still
        self.finished.clear()
        self.refill_at = None
        self.migration.interrupted()
        self.agreement.interrupted()
        vacant = self.recovery.vacancies()
        self.migration.settled(vacant)
        self.recovery.promote_understudies()
        if self.left:
            gone = ", ".join(str(rank) for rank in sorted(self.left))
            reason = f"{reason}; rank {gone} had already ended its script, so the world cannot be formed again"
            return self.stop(at, Outcome.FAILED, reason, exit_code)
        no_way = self.recovery.cannot_open()
        if no_way is not None:
            return self.stop(at, Outcome.FAILED, f"{reason}; no swap: {no_way}", exit_code)
        reason += make_whole_if_possible(self, at)
        degraded = go_on_without_the_vacant(self, at) if self.recovery.established else None
        if isinstance(degraded, str):
            return self.stop(at, Outcome.FAILED, f"{reason}; {degraded}", exit_code)
        if set(vacant) - self.recovery.absent:
            self.ladder.under_way.add(Rung.SWAP)
        opened = self.recovery.open(at, self.pool, reason, kind, rank, member)
        self.watchdog.new_generation(at)
        if degraded is not None:
            opened.append(replace(degraded, generation=self.generation))
        return self.after(at, [*opened, *begin_restart_if_stuck(self, at)])

    def open_now(self, at: float, reason: str) -> list[Command]:
        self.watchdog.fault_seen()  # somebody has a reason for it
        return self.open(at, reason, DecisionKind.ALARM)

    def open_again(self, at: float, reason: str) -> tuple[Command, ...]:
        """For a coordinator that takes over in the middle of a recovery."""
        return self._noting_the_end(self.open(at, reason, DecisionKind.ALARM))

    def after(self, at: float, commands: list[Command]) -> list[Command]:
        """A verdict may be possible now; it may also be that the world has to start over, or that nothing helps."""
        if self.stage is not Stage.STOPPING or self.recovery.awaited or self.recovery.asked_for_checkpoints:
            return commands
        if self.recovery.must_start_over():
            return commands if self._could_wait_for_room(at) else commands + self._start_over(at)
        commands += give_up_restart_without_state(self, at)
        if self.recovery.vacancies() and not self.recovery.restart:
            degraded = go_on_without_the_vacant(self, at)
            if isinstance(degraded, str):
                return commands + self.stop(at, Outcome.FAILED, f"{self.recovery.reason}; {degraded}", 1)
            commands += [degraded, self.recovery.record()] if degraded is not None else self.man_vacancies(at)
        if not self.recovery.restart and (self.recovery.joining or self.recovery.vacancies()):
            return commands  # a silent host may come back with its spares; if not, its loss will say so
        degraded_now = Rung.DEGRADE in self.ladder.under_way
        step = self.recovery.verdict(at, refusals(self), why_not_degraded(self), degraded_now)
        if isinstance(step, str):
            return commands + self.stop(at, Outcome.FAILED, step, 1)
        return commands + step

    def man_vacancies(self, at: float) -> list[Command]:
        """A member that is not connected yet is told later; that it has the rank is recorded now."""
        vacant = len(self.recovery.vacancies())
        manned = self.recovery.man_vacancies(at, self.pool)
        return [self.recovery.record(), *manned] if len(self.recovery.vacancies()) < vacant else []

    def _could_wait_for_room(self, at: float) -> bool:
        """A silent host comes back or is lost; both will be heard of."""
        return bool(self.hosts.silent) and not self.pool.room_for_a_world(at)

    def _start_over(self, at: float) -> list[Command]:
        reason = "a survivor was still before its first commit, so nothing is lost by beginning again"
        no_way = self.recovery.cannot_start_over()
        if no_way is None and not self.pool.room_for_a_world(at):
            no_way = f"there is no room for {self.policy.world_size} ranks: a host was lost or is under suspicion"
        if no_way is not None:
            return self.stop(at, Outcome.FAILED, f"{self.recovery.reason}; {no_way}", 1)
        with_rank = [member for member in self.roster.members.values() if member.rank is not None]
        kills: list[Command] = [KillMember(member=member.id, reason="the world starts over") for member in with_rank]
        for member in with_rank:
            self.roster.remove(member)
        self.migration.reasons.clear()
        self.ladder.under_way.clear()
        founded = self.recovery.found(at, self.pool, f"{self.recovery.reason}; {reason}")
        self.watchdog.world_founded(at)
        return kills + founded

    # -- deadlines --------------------------------------------------------------------------------------------------

    def _on_tick(self, at: float) -> list[Command]:
        lost = self.hosts.overdue(at, self.policy.takeover_patience)
        if lost:
            return hosts_lost(self, at, lost)
        if self.released:
            return []
        if self.refill_at is not None and at >= self.refill_at:
            return self.refill(at, "the pool is below its size")
        late = lateness.why_too_late(self.recovery, at)
        if late is not None:
            return self.open(at, late, DecisionKind.ALARM)
        commands = lateness.on_tick(self.recovery, at) + self.migration.on_tick(at)
        return commands + watchdog_on_tick(self, at)

    # -- recovery's end ---------------------------------------------------------------------------------------------

    def _on_resumed(self, event: ev.MemberResumed, member: Member) -> list[Command]:
        cold = self.recovery.cold
        commands = self.recovery.on_resumed(event, member)
        if self.recovery.everything_is_saved:
            return begin_anew(self, event.at)
        if commands:
            assert self.recovery.plan is not None
            self.ladder.resumed(self.recovery.plan, cold)
            self.agreement.gone_back(self.recovery.plan.step)
            self.blame.resumed(self.recovery.plan.step)
            self.watchdog.resumed(self.recovery.plan.step)
            self.refill_at = event.at + self.policy.refill_delay
            commands += on_all_resumed(self, event.at)
        return commands + self._go_on_moving(event.at)

    def _on_recovery_failed(self, event: ev.RecoveryFailed, member: Member) -> list[Command]:
        if event.generation != self.generation or self.stage is not Stage.FORMING:
            return []
        if member.leaving and self._successor_of(member) not in self.recovery.awaited:
            return []  # its successor has everything
        if self.recovery.is_saving:  # what it held is lost with it; its twins or its copies may do
            return self._on_resumed(
                ev.MemberResumed(at=event.at, member=member.id, generation=event.generation), member
            )
        if event.unfit and not member.founder and member.rank is not None:
            self.recovery.unfit[member.rank] = Unfit(event.why, restart_helps=True)
            return self.recovery.kill(event.at, [member], f"it cannot be made equal to rank {member.rank}: {event.why}")
        why = f"member {member.id} could not resume: {event.why}"
        leavers = self.roster.departing()
        if leavers and self.recovery.attempts:  # not only once: then their twins shall give
            return self.recovery.kill(event.at, leavers, f"{why}; it could not hand its rank over")
        return self.open(event.at, why, DecisionKind.ALARM)

    def _successor_of(self, leaver: Member) -> MemberId | None:
        return None if leaver.rank is None else self.roster.holders.get(leaver.rank)

    def _on_parked(self, at: float, member: Member) -> list[Command]:
        if member.rank is None:
            self.roster.park(member)
            self.pool.on_spare_warm(member)
        return self._go_on_moving(at)

    # -- moves and other requests -------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """Why a request would not be granted now; None if it would."""
        return refusal(self, request)

    def want_moved(self, at: float, ranks: tuple[Rank, ...], reason: str) -> list[Command]:
        return self.migration.want(at, ranks, reason) + self._go_on_moving(at)

    def refill_now(self, at: float, reason: str) -> list[Command]:
        return self.refill(at, reason) if self.stage is Stage.TRAINING else []

    def _go_on_moving(self, at: float) -> list[Command]:
        if self.left or self.released:
            return []
        commands = self.migration.go_on(at)
        self.refill_for_the_absent(at)
        return commands

    def refill_for_the_absent(self, at: float) -> None:
        """A spare that prepares for one of them leaves its place to the next."""
        if any(rank not in self.roster.holders for rank in self.recovery.absent):
            self.refill_soon(at)

    def _on_step_told(self, event: ev.StepTold) -> list[Command]:
        if self.left or self.released:
            return []
        commands = self.migration.on_step_told(event)
        if commands:
            self.watchdog.fault_seen()  # a planned move is a recovery of its own
            self.watchdog.new_generation(event.at)
            self.finished.clear()
            self.refill_at = None
            self.agreement.interrupted()
        return self.after(event.at, commands)

    # -- end ----------------------------------------------------------------------------------------------------------

    def _on_finished(self, event: ev.MemberFinished, member: Member) -> list[Command]:
        if self.released:
            return [ReleaseMembers(generation=self.generation, members=(member.id,))]
        if event.generation != self.generation or self.stage is Stage.STOPPING:
            return []
        self.finished.add(member.id)
        if len(self.finished) < self.recovery.present_count or self.recovery.killed:
            return []  # somebody is being ended: its rank has to be manned once more
        self.released = True
        members = tuple(member.id for member in self.recovery.present())
        over = "the others are at the end of their steps"
        benched = [m for m in self.roster.seated() if m.rank in self.recovery.absent]
        return [
            *(KillMember(member=member.id, reason=over) for member in benched),
            self.decision(event.at, DecisionKind.FINISH, "every rank has committed its last step"),
            self.recovery.record(),  # nobody who takes over may form this world again
            ReleaseMembers(generation=self.generation, members=members),
        ]

    def stop(self, at: float, outcome: Outcome, reason: str, exit_code: int) -> list[Command]:
        """Recorded like a generation: a coordinator that was deposed must not end the job, and whoever takes over must
        not go on with a job that has ended."""
        return [
            self.decision(at, DecisionKind.STOP, reason),
            self.recovery.record(),
            StopJob(outcome=outcome, reason=reason, exit_code=exit_code),
        ]

    def _refuse(self, event: ev.Event) -> list[Command]:
        """Somebody who is no longer (or never was) a member speaks. Losses of such members are no news."""
        if isinstance(event, ev.MemberLost):
            return []
        who = getattr(event, "member", "?")
        return [
            RecordDecision(
                at=event.at,
                generation=self.generation,
                kind=DecisionKind.REFUSE,
                member=MemberId(who),
                reason=f"{type(event).__name__} from {who}, which is not a member of generation {self.generation}",
            )
        ]

    def decision(self, at: float, kind: DecisionKind, reason: str) -> RecordDecision:
        return RecordDecision(at=at, generation=self.generation, kind=kind, reason=reason)
