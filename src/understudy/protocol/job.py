"""The state machine of one job: events in, commands out.

    FOUNDING ──first step committed──▶ TRAINING ──loss or stall──▶ STOPPING ──all reported──▶ FORMING ─┐
        ▲                                 ▲  ▲                        ▲  │                       │     │
        └───────── start over ────────────┼──┼────────────────────────┼──┘        loss, failure  │     │
                                          │  └────────────────────────┼───────────────────────────     │
                                          │                           └────────────────────────────────┤
                                          └────────────────── all resumed ─────────────────────────────┘
    any ──▶ STOPPED

Knows: which member holds which rank, what each said last, what is awaited. Does not know: processes, sockets, tensors,
time (other than the `at` of events). Called by the coordinator and, unchanged, by the simulator. The handling of a
running recovery is in `round`, of the pool in `pool`; this file joins the parts.

A new loss in any stage opens the next generation and begins again at STOPPING; every stage can be repeated.
Every event costs the same however many ranks there are, except the two that speak to all of them (a new generation
and a verdict), which are linear.
"""

from dataclasses import replace

from msgspec import structs

from understudy.foundation.copying import copied
from understudy.foundation.ids import Generation, MemberId, Rank
from understudy.protocol import deadlines
from understudy.protocol import events as ev
from understudy.protocol.admission import Admission
from understudy.protocol.checks import Checks
from understudy.protocol.commands import (
    Command,
    DecisionKind,
    KillMember,
    Outcome,
    RecordDecision,
    ReleaseMembers,
    StopJob,
)
from understudy.protocol.device_loss import DeviceLoss
from understudy.protocol.fallback import Fallback, NoWay
from understudy.protocol.host_events import HostEvents
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.member_loss import MemberLoss
from understudy.protocol.migration import Migration
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.recovery_kind import Processes
from understudy.protocol.refill import Refill
from understudy.protocol.replica_check import ReplicaCheck
from understudy.protocol.requests import Request
from understudy.protocol.roster import Member
from understudy.protocol.round import Round
from understudy.protocol.round_state import Unfit
from understudy.protocol.rungs import Rung
from understudy.protocol.stages import Stage
from understudy.protocol.state import State
from understudy.protocol.watchdog import Watchdog


class JobMachine:
    """See the module's text. `handle` is the only door; `next_deadline` says when a `Tick` is wanted."""

    def __init__(self, policy: Policy, state: State | None = None) -> None:
        self.policy = policy
        self.state = state = State() if state is None else state
        hosts, roster, ending = state.hosts, state.roster, state.ending
        self.hosts, self.roster, self.ending = hosts, roster, ending
        self.pool = pool = SparePool(policy, roster, hosts, state.pool)
        self.round = round_ = Round(policy, roster, hosts, pool, state.round)
        self.refill = refill = Refill(policy, roster, pool, round_)
        self.fallback = fallback = Fallback(policy, roster, pool, round_, state.fallback)
        self.migration = migration = Migration(
            policy, roster, pool, round_, state.fallback, refill, ending, state.migration
        )
        self.checks = checks = Checks(roster, round_, ending, self)
        self.replica_check = ReplicaCheck(roster, round_, checks, ending, state.replica_check, self)
        self.watchdog = watchdog = Watchdog(policy, hosts, roster, pool, round_, fallback, ending, state.watchdog, self)
        self.member_loss = member_loss = MemberLoss(
            policy,
            roster,
            pool,
            state.crash_loop,
            round_,
            migration,
            refill,
            watchdog,
            DeviceLoss(hosts, roster, round_),
            ending,
            self,
        )
        self.host_events = HostEvents(
            policy, hosts, roster, round_, migration, refill, watchdog, member_loss, ending, self
        )
        self.admission = Admission(policy, hosts, roster, pool, round_, migration, refill, watchdog, ending, self)

    def copy(self) -> "JobMachine":
        return JobMachine(self.policy, copied(self.state))

    @property
    def stage(self) -> Stage:
        return Stage.STOPPED if self.ending.stopped else self.round.state.stage

    @property
    def generation(self) -> Generation:
        return self.round.state.generation

    @property
    def released(self) -> bool:
        return self.ending.released

    @property
    def stopped(self) -> StopJob | None:
        return self.ending.stopped

    def handle(self, event: ev.Event) -> tuple[Command, ...]:
        """Take one event; return what is to be done, in order."""
        if self.ending.stopped:
            return ()
        self.state.now = max(self.state.now, event.at)
        return self._noting_the_end(self._dispatch(event))

    def _noting_the_end(self, commands: list[Command]) -> tuple[Command, ...]:
        for command in commands:
            if isinstance(command, StopJob):
                self.ending.stopped = command
        return tuple(commands)

    def next_deadline(self) -> float | None:
        if self.ending.stopped:
            return None
        if self.ending.released:
            return self._host_deadline()  # a script may take its time to end
        waits = (
            deadlines.next_deadline(self.round),
            self.pool.state.refill_at,
            self._host_deadline(),
            self.migration.next_deadline(),
            self.watchdog.state.next_deadline(),
        )
        return min((deadline for deadline in waits if deadline is not None), default=None)

    def _host_deadline(self) -> float | None:
        return self.hosts.next_deadline(self.state.now, self.policy.takeover_patience)

    def _dispatch(self, event: ev.Event) -> list[Command]:
        match event:
            case ev.JobStarted():
                self.hosts.join(THIS_HOST, self.policy.world_size, self.policy.spares, devices=event.devices)
                return self.found(event.at)
            case ev.HostJoined():
                return self.host_events.host_joined(event)
            case ev.HostSilent() | ev.HostHeard() if event.host not in self.hosts.by_id:
                return []
            case ev.HostSilent():
                return self.host_events.host_silent(event)
            case ev.HostHeard():
                return self.host_events.host_heard(event)
            case Request():
                return self.admission.grant(event)
            case ev.StopRequested():
                return self.stop(
                    event.at, Outcome.STOPPED, because(Code.STOP_REQUESTED, text=event.reason), event.exit_code
                )
            case ev.Tick():
                return self._on_tick(event.at)
            case ev.PaceLearnt():
                self.round.state.pace = event.pace
                return []
            case ev.ActivityObserved():
                return self.watchdog.on_sightings(event)
        member = self.roster.members.get(getattr(event, "member", MemberId("")))
        if member is None:
            return self._refuse(event)
        match event:
            case ev.MemberConnected():
                return self.round.on_connected(member)
            case ev.MemberParked():
                return self._on_parked(event.at, member)
            case ev.MemberEstablished():
                return self._on_established(event, member)
            case ev.MemberLost():
                return self.member_loss.on_lost(event.at, member, event.cause)
            case ev.DigestTold():
                return self.replica_check.on_digest(event, member)
            case ev.BadStateTold():
                return self.checks.on_bad_state(event, member)
            case ev.PositionReported():
                return self.after(event.at, self.round.on_position(event, member))
            case ev.MemberPrepared():
                self.round.on_prepared(event, member)
                return self.after(event.at, self.migration.go_on(event.at))
            case ev.CheckpointsTold():
                return self.after(event.at, self.round.on_checkpoints(event, member))
            case ev.ContactLost():
                return self.watchdog.on_contact_lost(event, member)
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

    def found(self, at: float) -> list[Command]:
        commands = self.round.found(at, because(Code.JOB_BEGINS))
        self.watchdog.state.world_founded(at)
        commands += self.pool.refill(at, self.generation, first=True)
        return commands

    # -- first steps --------------------------------------------------------------------------------------------------

    def _on_established(self, event: ev.MemberEstablished, member: Member) -> list[Command]:
        if event.generation != self.round.state.founded_in:
            return []
        commands = self.round.on_established(event, member)
        if self.pool.state.refill_at is None and self.stage is Stage.TRAINING:
            self.refill.soon(event.at)  # a world that started over has taken its spares along
        return commands

    # -- opening the next generation -------------------------------------------------------------------------------

    def open(
        self,
        at: float,
        reason: Reason,
        kind: DecisionKind,
        exit_code: int = 1,
        rank: Rank | None = None,
        member: MemberId | None = None,
    ) -> list[Command]:
        """Open the next generation, or stop the job when it cannot be manned, or when that has not helped before."""
        if kind is DecisionKind.ALARM and self.stage is Stage.TRAINING:
            standing_still = self.watchdog.no_progress(at, reason)
            if standing_still is not None:
                return standing_still
        self.ending.finished.clear()
        self.pool.state.refill_at = None
        self.migration.interrupted()
        self.replica_check.state.interrupted()
        vacant = self.round.vacancies()
        self.migration.settled(vacant)
        self.round.promote_understudies()
        if self.ending.left:
            reason = because(Code.SCRIPT_HAD_ENDED, cause=reason, ranks=tuple(sorted(self.ending.left)))
            return self.stop(at, Outcome.FAILED, reason, exit_code)
        no_way = self.round.cannot_open()
        if no_way is not None:
            no_swap = because(Code.NO_STRATEGY, strategy=Rung.SWAP.value, why=no_way)
            stopped = because(Code.CANNOT_GO_ON, cause=reason, tried=(no_swap,))
            return self.stop(at, Outcome.FAILED, stopped, exit_code)
        back = self.fallback.make_whole_if_possible(at)
        if back:
            reason = because(Code.COMES_BACK_TOO, cause=reason, ranks=back)
        degraded = self.fallback.go_on_without_the_vacant(at) if self.round.state.established else None
        if isinstance(degraded, NoWay):
            stopped = because(Code.CANNOT_GO_ON, cause=reason, tried=degraded.tried)
            return self.stop(at, Outcome.FAILED, stopped, exit_code)
        if set(vacant) - self.round.state.absent:
            self.fallback.state.under_way.add(Rung.SWAP)
        opened = self.round.open(at, reason, kind, rank, member)
        self.watchdog.state.new_generation(at)
        if degraded is not None:
            opened.append(structs.replace(degraded, generation=self.generation))
        return self.after(at, [*opened, *self.fallback.begin_restart_if_stuck(at)])

    def open_again(self, at: float, reason: Reason) -> tuple[Command, ...]:
        """For a coordinator that takes over in the middle of a recovery."""
        return self._noting_the_end(self.open(at, reason, DecisionKind.ALARM))

    def after(self, at: float, commands: list[Command]) -> list[Command]:
        """A verdict may be possible now; it may also be that the world has to start over, or that nothing helps."""
        if self.stage is not Stage.STOPPING or self.round.state.awaited or self.round.state.asked_for_checkpoints:
            return commands
        if self.round.must_start_over():
            return commands if self._could_wait_for_room(at) else commands + self._start_over(at)
        commands += self.fallback.give_up_restart_without_state(at)
        saving = self.round.state.kind.processes is Processes.SAVING
        if self.round.vacancies() and not saving:
            degraded = self.fallback.go_on_without_the_vacant(at)
            if isinstance(degraded, NoWay):
                reason = because(Code.CANNOT_GO_ON, cause=self.round.state.reason, tried=degraded.tried)
                return commands + self.stop(at, Outcome.FAILED, reason, 1)
            commands += [degraded, self.round.record()] if degraded is not None else self.round.man_and_record(at)
        if not saving and (self.round.state.joining or self.round.vacancies()):
            return commands  # a silent host may come back with its spares; if not, its loss will say so
        degraded_now = Rung.DEGRADE in self.fallback.state.under_way
        step = self.round.verdict(at, self.fallback.refusals(), self.fallback.why_not_degraded(), degraded_now)
        if isinstance(step, Reason):
            return commands + self.stop(at, Outcome.FAILED, step, 1)
        return commands + step

    def _could_wait_for_room(self, at: float) -> bool:
        """A silent host comes back or is lost; both will be heard of."""
        return bool(self.hosts.silent) and not self.pool.room_for_a_world(at)

    def _start_over(self, at: float) -> list[Command]:
        no_way = self.round.cannot_start_over()
        if no_way is None and not self.pool.room_for_a_world(at):
            no_way = self.pool.no_room_for_the_world()
        cause = self.round.state.reason
        if no_way is not None:
            return self.stop(at, Outcome.FAILED, because(Code.CANNOT_START_OVER, cause=cause, why=no_way), 1)
        kills = self._end_all_with_a_rank(because(Code.WORLD_STARTS_OVER))
        self.fallback.state.under_way.clear()
        founded = self.round.found(at, because(Code.STARTED_OVER, cause=cause))
        self.watchdog.state.world_founded(at)
        return kills + founded

    def _begin_anew(self, at: float) -> list[Command]:
        """Everything that can be saved is saved: end all processes with a rank, and give their ranks to others."""
        round_ = self.round.state
        reason = because(Code.BEGINS_ANEW, cause=round_.reason)
        kills = self._end_all_with_a_rank(because(Code.ALL_BEGIN_ANEW))
        round_.absent = frozenset()
        round_.unfit.clear()
        round_.kind = replace(round_.kind, processes=Processes.FRESH)
        return [*kills, *self.after(at, self.round.open(at, reason, DecisionKind.RESTART))]

    def _end_all_with_a_rank(self, reason: Reason) -> list[Command]:
        with_rank = [member for member in self.roster.members.values() if member.rank is not None]
        for member in with_rank:
            self.roster.remove(member)
        self.migration.state.reasons.clear()
        return [KillMember(member=member.id, reason=reason) for member in with_rank]

    # -- deadlines --------------------------------------------------------------------------------------------------

    def _on_tick(self, at: float) -> list[Command]:
        lost = self.hosts.overdue(at, self.policy.takeover_patience)
        if lost:
            return self.host_events.hosts_lost(at, lost)
        if self.ending.released:
            return []
        if self.pool.state.refill_at is not None and at >= self.pool.state.refill_at:
            return self.refill.refill(at, because(Code.POOL_LOW))
        late = deadlines.why_too_late(self.round, at)
        if late is not None:
            return self.open(at, late, DecisionKind.ALARM)
        commands = deadlines.on_tick(self.round, at) + self.migration.on_tick(at)
        return commands + self.watchdog.on_tick(at)

    # -- recovery's end ---------------------------------------------------------------------------------------------

    def _on_resumed(self, event: ev.MemberResumed, member: Member) -> list[Command]:
        cold = self.round.state.kind.processes is Processes.FRESH
        commands = self.round.on_resumed(event, member)
        if self.round.everything_is_saved:
            return self._begin_anew(event.at)
        if commands:
            assert self.round.state.plan is not None
            self.fallback.state.resumed(self.round.state.plan, cold)
            self.replica_check.state.gone_back(self.round.state.plan.step)
            self.state.crash_loop.resumed(self.round.state.plan.step)
            self.watchdog.state.resumed(self.round.state.plan.step)
            self.pool.state.refill_at = event.at + self.policy.refill_delay
            commands += self.checks.on_all_resumed(event.at)
        return commands + self.migration.go_on(event.at)

    def _on_recovery_failed(self, event: ev.RecoveryFailed, member: Member) -> list[Command]:
        if event.generation != self.generation or self.stage is not Stage.FORMING:
            return []
        if member.leaving and self._successor_of(member) not in self.round.state.awaited:
            return []  # its successor has everything
        if self.round.is_saving:  # what it held is lost with it; its twins or its copies may do
            return self._on_resumed(
                ev.MemberResumed(at=event.at, member=member.id, generation=event.generation), member
            )
        if event.unfit and not member.founder and member.rank is not None:
            self.round.state.unfit[member.rank] = Unfit(because(Code.UNLIKE, text=event.why), restart_helps=True)
            unequal = because(Code.CANNOT_BE_EQUAL, rank=member.rank, text=event.why)
            return self.round.kill(event.at, [member], unequal)
        why = because(Code.COULD_NOT_RESUME, member=member.id, text=event.why)
        leavers = self.roster.departing()
        if leavers and self.round.state.attempts:  # not only once: then their twins shall give
            return self.round.kill(event.at, leavers, because(Code.HANDOVER_FAILED, cause=why))
        return self.open(event.at, why, DecisionKind.ALARM)

    def _successor_of(self, leaver: Member) -> MemberId | None:
        return None if leaver.rank is None else self.roster.holders.get(leaver.rank)

    def _on_parked(self, at: float, member: Member) -> list[Command]:
        if member.rank is None:
            self.roster.park(member)
            self.pool.on_spare_warm(member)
        return self.migration.go_on(at)

    # -- moves and other requests -------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> Reason | None:
        """Why a request would not be granted now; None if it would."""
        return self.admission.refusal(request)

    def _on_step_told(self, event: ev.StepTold) -> list[Command]:
        if self.ending.left or self.ending.released:
            return []
        commands = self.migration.on_step_told(event)
        if commands:
            self.watchdog.state.fault_seen()  # a planned move is a recovery of its own
            self.watchdog.state.new_generation(event.at, at_once=False)
            self.ending.finished.clear()
            self.pool.state.refill_at = None
            self.replica_check.state.interrupted()
        return self.after(event.at, commands)

    # -- end ----------------------------------------------------------------------------------------------------------

    def _on_finished(self, event: ev.MemberFinished, member: Member) -> list[Command]:
        if self.ending.released:
            return [ReleaseMembers(generation=self.generation, members=(member.id,))]
        if event.generation != self.generation or self.stage is Stage.STOPPING:
            return []
        self.ending.finished.add(member.id)
        if len(self.ending.finished) < self.round.present_count or self.round.state.killed:
            return []  # a member is being ended: its rank has to be manned once more
        self.ending.released = True
        members = tuple(member.id for member in self.round.present())
        over = because(Code.OTHERS_FINISHED)
        benched = [m for m in self.roster.seated() if m.rank in self.round.state.absent]
        return [
            *(KillMember(member=member.id, reason=over) for member in benched),
            self.decision(event.at, DecisionKind.FINISH, because(Code.ALL_FINISHED)),
            self.round.record(),  # no coordinator that takes over may form this world again
            ReleaseMembers(generation=self.generation, members=members),
        ]

    def stop(self, at: float, outcome: Outcome, reason: Reason, exit_code: int) -> list[Command]:
        """Recorded like a generation: a coordinator that was deposed must not end the job, and one that takes over
        must not go on with a job that has ended."""
        return [
            self.decision(at, DecisionKind.STOP, reason),
            self.round.record(),
            StopJob(outcome=outcome, reason=reason, exit_code=exit_code),
        ]

    def _refuse(self, event: ev.Event) -> list[Command]:
        """The sender is no longer a member, or never was one. Losses of such members are no news."""
        if isinstance(event, ev.MemberLost):
            return []
        sender = getattr(event, "member", "?")
        return [
            RecordDecision(
                at=event.at,
                generation=self.generation,
                kind=DecisionKind.REFUSE,
                member=MemberId(sender),
                reason=because(
                    Code.NOT_A_MEMBER, event=type(event).__name__, member=sender, generation=self.generation
                ),
            )
        ]

    def decision(self, at: float, kind: DecisionKind, reason: Reason) -> RecordDecision:
        return RecordDecision(at=at, generation=self.generation, kind=kind, reason=reason)
