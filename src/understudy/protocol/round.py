"""One recovery: open a generation, collect positions and joiners, give the verdict, wait until all have resumed.

Knows what is awaited from which member in the current generation. Called only by `job`. Messages may be lost: whatever
was not answered is said again on a tick, and every answer may come twice.
"""

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol import devices
from understudy.protocol import events as ev
from understudy.protocol.commands import (
    Command,
    DecisionKind,
    KillMember,
    RecordDecision,
    RecordGeneration,
    ResumeAt,
    Seat,
    StartMember,
)
from understudy.protocol.donors import without_twin
from understudy.protocol.hosts import Hosts
from understudy.protocol.neighbours import cover
from understudy.protocol.outbound import Outbound
from understudy.protocol.planning import CheckpointsWanted, NoPlan, Situation, make_plan, tail_of
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.positions import Position
from understudy.protocol.probation import steps_to_watch
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.recovery_kind import Processes, RecoveryKind
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.round_state import RoundState
from understudy.protocol.rungs import Rung
from understudy.protocol.stages import Stage, Trigger, next_stage

_TOGETHER = 2.0  # seconds


class Round:
    """See the module's text. What it knows is in `state`."""

    def __init__(self, policy: Policy, roster: Roster, hosts: Hosts, pool: SparePool, state: RoundState) -> None:
        self.policy, self.roster, self.hosts, self.pool, self.state = policy, roster, hosts, pool, state
        self.outbound = Outbound(policy, roster, state)

    def _enter(self, trigger: Trigger) -> None:
        self.state.stage = next_stage(self.state.stage, trigger)

    # -- founding -------------------------------------------------------------------------------------------------

    def found(self, at: float, reason: Reason) -> list[Command]:
        """Man every rank anew. The very first generation is founded like every later start over."""
        first = self.state.generation == 0
        self.state.start_overs += 0 if first else 1
        self._next_generation(at, reason)
        self.state.founded_in = self.state.generation
        self._enter(Trigger.WORLD_FOUNDED)
        self.state.established = False
        self.state.twin_keys.clear()
        self.state.holdings.clear()
        self.state.replicas.clear()
        self.state.unfit.clear()
        self.state.absent = frozenset()
        starts: list[Command] = []
        assigns: list[Command] = []
        first_homes = [host.id for host in self.hosts.founders() for _ in range(host.ranks)] if first else []
        for number in range(self.policy.world_size):
            rank = Rank(number)
            if first:
                member, start = self.pool.start(rank, first_homes[number], first=True)
            else:
                member, start = self.pool.take(rank, at, self.home(rank), True, self.state.devices.get(rank))
            self._seat(member, rank, Standing.ACTIVE, at)
            starts += self._seated(start, member)
            assigns += self.outbound.assign(member)
        kind = DecisionKind.START if first else DecisionKind.START_OVER
        return [self.decision(at, kind, reason), self.record(), *starts, *assigns]

    def on_connected(self, member: Member) -> list[Command]:
        member.connected = True
        return [*self.outbound.assign(member), *self.outbound.catch_up((member,))]

    def on_established(self, event: ev.MemberEstablished, member: Member) -> list[Command]:
        """True for good, even if a newer generation is open by now."""
        at, known_before = event.at, len(self.state.twin_keys)
        if member.rank is not None:
            self._learn(member.rank, event.twin_key, event.holdings)
            if event.replica:
                self.state.replicas[member.rank] = frozenset(event.replica)
        news = not self.state.established
        self.state.established = True
        if self.state.stage is Stage.FOUNDING:
            self._enter(Trigger.FIRST_COMMIT)
            self.state.setup_seconds = at - self.state.opened_at
        all_known = known_before < len(self.state.twin_keys) == self.policy.world_size
        warnings = self._warn_of_ranks_without_twin(at) if all_known else []
        if news and event.began_at:
            began = because(Code.BEGAN_WITH_CHECKPOINT, step=event.began_at)
            warnings.append(self.decision(at, DecisionKind.CHECKPOINT, began, step=event.began_at))
        return [self.record(), *warnings] if news else warnings  # a coordinator that takes over must not start over

    def _warn_of_ranks_without_twin(self, at: float) -> list[Command]:
        alone = without_twin(self.state.twin_keys, self.state.holdings)
        if not alone:
            return []
        hosts = {rank: host for rank, (host, _) in self.state.homes.items()}
        covered = cover(alone, hosts, self.policy.peer_memory)
        warning = because(Code.NO_TWIN, ranks=alone, world=self.policy.world_size, cover=covered)
        return [self.decision(at, DecisionKind.WARN, warning)]

    def cannot_start_over(self) -> Reason | None:
        if self.state.start_overs >= self.policy.max_start_overs:
            limit = self.policy.max_start_overs
            return because(Code.START_OVERS_SPENT, count=self.state.start_overs, limit=limit)
        return None

    @property
    def in_setup(self) -> bool:
        """No step of this world has been committed yet."""
        return not self.state.established

    @property
    def trains(self) -> bool:
        """Steps are under way. A generation that is to be left at a boundary trains until the first rank has come
        there."""
        left_later = self.state.stage is Stage.STOPPING and self.state.boundary is not None and not self.state.positions
        return not self.in_setup and (self.state.stage is Stage.TRAINING or left_later)

    # -- opening --------------------------------------------------------------------------------------------------

    def vacancies(self) -> list[Rank]:
        taken = self.roster.holders.keys() | self.state.absent
        return [Rank(r) for r in range(self.policy.world_size) if Rank(r) not in taken]

    @property
    def present_count(self) -> int:
        """How many ranks the world consists of now; without looking at each."""
        return self.policy.world_size - len(self.state.absent)

    def present(self) -> list[Member]:
        """Members with a rank that the world does not go on without, by rank."""
        return [member for member in self.roster.seated() if member.rank not in self.state.absent]

    def cannot_open(self) -> Reason | None:
        if self.state.attempts >= self.policy.recovery_attempts:
            return because(Code.GENERATIONS_FAILED, count=self.state.attempts)
        return None

    def open(
        self,
        at: float,
        reason: Reason,
        kind: DecisionKind,
        rank: Rank | None = None,
        member: MemberId | None = None,
    ) -> list[Command]:
        """Abandon the current generation. Its vacant ranks are manned at once, unless the world is so young that it
        will probably start over."""
        self._next_generation(at, reason)
        self._enter(Trigger.GENERATION_OPENED)
        self._count_attempt(at)
        told = self._await_reports()
        self.state.resend_at = at + self.policy.resend_every
        manned = self.man_vacancies(at) if self.state.established else []
        return [self.decision(at, kind, reason, rank, member), self.record(), *self.outbound.leave(told), *manned]

    def move(self, at: float, ranks: list[Rank], boundary: StepNumber, steps: int, reason: Reason) -> list[Command]:
        """Abandon the current generation at a boundary, so many `steps` from now. The understudies of `ranks` are
        prepared, and hold them from now on."""
        self._next_generation(at, reason)
        self._enter(Trigger.MOVE_BEGUN)
        self.state.boundary = boundary
        for rank in ranks:
            self.roster.hand_over(rank)
            holder = self.roster.holder(rank)
            self.state.homes[rank] = (holder.host, holder.slot)
        told = self._await_reports()
        self.state.deadline = at + self.policy.stall_deadline(self.state.pace) + steps * self.state.pace
        self.state.resend_at = at + self.policy.resend_every
        return [self.decision(at, DecisionKind.MOVE, reason, step=boundary), self.record(), *self.outbound.leave(told)]

    def come_back(self, at: float, ranks: list[Rank], boundary: StepNumber, steps: int) -> list[Command]:
        """A process is prepared for each of these absent ranks: they come back at a boundary."""
        self.state.absent -= frozenset(ranks)
        absent = tuple(sorted(self.state.absent))
        rest = because(Code.STILL_ABSENT, ranks=absent) if absent else because(Code.WHOLE_AGAIN)
        reason = because(Code.COMES_BACK, ranks=tuple(ranks), step=boundary, rest=rest)
        return self.move(at, [], boundary, steps, reason)

    def seat_absent(self, spare: Member, rank: Rank, at: float) -> list[Command]:
        """It prepares for a rank that the world goes on without."""
        self._seat(spare, rank, Standing.JOINING, at)
        return [self.record(), *self.outbound.assign(spare)]

    def _await_reports(self) -> list[Member]:
        """Await the reports of holders and leavers; return the members that can be told so."""
        told: list[Member] = []
        for member in (*self.roster.seated(), *self.roster.departing()):
            if member.standing is Standing.JOINING:
                if member.rank not in self.state.absent:
                    self.state.joining.add(member.id)
            elif member.connected:
                self.state.awaited.add(member.id)
            elif member.rank is not None:  # it has not even been told its rank, so it has not begun
                self.state.positions[member.rank] = Position(holds=None, established=False)
            if member.connected:
                told.append(member)
        return told

    def promote_understudies(self) -> None:
        """A rank that was to move was lost instead: its understudy has it now."""
        for rank in self.vacancies():
            if rank in self.roster.understudies:
                member = self.roster.promote(rank)
                self.state.homes[rank] = (member.host, member.slot)

    def _count_attempt(self, at: float) -> None:
        """Many members may be lost together, and each loss is told by itself: together they are one attempt."""
        if self.state.attempted_at is None or at >= self.state.attempted_at + _TOGETHER:
            self.state.attempted_at = at
            self.state.attempts += 1

    def man_vacancies(self, at: float) -> list[Command]:
        """Give every vacant rank to a spare (or to a process that is started for it), as far as there are any now."""
        self.state.store = self._choose_store(at)
        commands: list[Command] = []
        for vacant in self.vacancies():
            if self.state.kind.processes is not Processes.FRESH and not self.pool.can_take(at):
                break
            joiner, start = self.pool.take(vacant, at, self.home(vacant), device=self.state.devices.get(vacant))
            self._seat(joiner, vacant, Standing.JOINING, at)
            self.state.joining.add(joiner.id)
            commands += [*self._seated(start, joiner), *self.outbound.assign(joiner)]
        return commands

    def man_and_record(self, at: float) -> list[Command]:
        """A member that is not connected yet is told later; that it has the rank is recorded now."""
        vacant = len(self.vacancies())
        manned = self.man_vacancies(at)
        return [self.record(), *manned] if len(self.vacancies()) < vacant else []

    def home(self, rank: Rank) -> HostId | None:
        return self.state.homes[rank][0] if rank in self.state.homes else None

    def _seat(self, member: Member, rank: Rank, standing: Standing, at: float) -> None:
        host, slot = self.state.homes.get(rank, (None, 0))
        wanted = slot if host == member.host else None
        self.roster.seat(member, rank, standing, self.state.generation, at, wanted)
        self.state.homes[rank] = (member.host, member.slot)
        devices.give_to_rank(member, self.hosts.by_id.get(member.host), self.roster, self.state.devices.get(rank))
        if member.founder:
            devices.note_where(member, self.roster, self.state.devices)

    def give_device_to_understudy(self, spare: Member, rank: Rank) -> None:
        host, holder = self.hosts.by_id.get(spare.host), self.roster.holder(rank)
        devices.give_to_rank(spare, host, self.roster, self.state.devices.get(rank), holder.id)

    def _seated(self, starts: list[Command], member: Member) -> list[Command]:
        """Tell a process that is started for a rank where it will be, before it asks."""
        seat = Seat(
            rank=member.rank or Rank(0),
            local_rank=member.slot,
            local_world_size=self.policy.ranks_per_host,
            node_rank=(member.rank or 0) // self.policy.ranks_per_host,
            nodes=self.policy.hosts,
            store=self.state.store,
        )
        device = self.roster.device_of(member)
        return [
            structs.replace(start, seat=seat, device=device) if isinstance(start, StartMember) else start
            for start in starts
        ]

    def _choose_store(self, at: float) -> HostId:
        """The store stays where it is as long as that host is well. It holds nothing that a recovery does not set
        again."""
        if self.hosts.usable(self.state.store, at):
            return self.state.store
        well = [host for host in self.hosts.present() if self.hosts.usable(host.id, at)]
        return min(well, key=lambda host: (host.place, host.id)).id if well else self.state.store

    def _next_generation(self, at: float, reason: Reason) -> None:
        self.state.generation = Generation(self.state.generation + 1)
        self.state.store = self._choose_store(at)
        self.state.reason, self.state.opened_at = reason, at
        self.state.awaited.clear()
        self.state.joining.clear()
        self.state.positions.clear()
        self.state.killed.clear()
        self.state.leavers_at.clear()
        self.state.not_finite.clear()
        self.state.durable.clear()
        self.state.asked_for_checkpoints.clear()
        self.state.plan = self.state.boundary = None
        self.state.deadline = self.state.resend_at = None

    # -- collecting -------------------------------------------------------------------------------------------------

    def on_position(self, event: ev.PositionReported, member: Member) -> list[Command]:
        if member.rank is not None and event.twin_key is not None and event.generation >= self.state.founded_in:
            self._learn(member.rank, event.twin_key, event.holdings)  # true in whatever stage it is heard
        if event.generation != self.state.generation or self.state.stage is not Stage.STOPPING or member.rank is None:
            return []
        if member.standing is Standing.JOINING or self.roster.is_understudy(member):
            return []  # its rehearsal is not over, or the rank is another one's; what it says counts later
        position = event.position
        if not member.founder:
            position = replace(position, established=True)  # only founding members have a first step
        (self.state.leavers_at if member.leaving else self.state.positions)[member.rank] = position
        if not event.provisional:
            self.state.awaited.discard(member.id)
        return []

    def on_prepared(self, event: ev.MemberPrepared, member: Member) -> list[Command]:
        if event.generation != member.assigned_in or member.rank is None:
            return []
        self._learn(member.rank, event.twin_key, event.holdings)  # a coordinator that took over hears it from all
        if member.standing is not Standing.JOINING:
            return []
        member.standing = Standing.PREPARED
        if self.roster.is_understudy(member):
            return []  # the rank is another one's still
        self.state.joining.discard(member.id)
        self.state.positions[member.rank] = Position(holds=None, saved=event.saved, keeps=event.keeps)
        return []

    def on_checkpoints(self, event: ev.CheckpointsTold, member: Member) -> list[Command]:
        if event.generation == self.state.generation and member.rank is not None:
            self.state.durable[member.rank] = event.steps
            self.state.asked_for_checkpoints.discard(member.id)
        return []

    def _ask_for_checkpoints(self, at: float, tried: tuple[Reason, ...]) -> list[Command]:
        members = tuple(member.id for member in self.present())
        self.state.asked_for_checkpoints = set(members)
        self.state.resend_at = at + self.policy.resend_every
        reason = because(Code.CHECKPOINTS_WANTED, cause=self.state.reason, tried=tried)
        return [self.decision(at, DecisionKind.WAIT, reason), *self.outbound.ask_for_checkpoints()]

    def _learn(self, rank: Rank, twin_key: str, holdings: tuple[int, ...]) -> None:
        """What a rank holds stays the same for as long as its world; that a member does not say it again means
        nothing."""
        self.state.twin_keys[rank] = twin_key
        if holdings and twin_key not in self.state.holdings:
            self.state.holdings[twin_key] = frozenset(holdings)

    def must_start_over(self) -> bool:
        """A member is still in its first step: then no rank has committed it, and nothing is lost."""
        if self.state.established:
            return False  # a commit that is known must never be thrown away
        unsettled = any(not position.established for position in self.state.positions.values())
        return unsettled or all(position.holds is None for position in self.state.positions.values())

    # -- verdict ----------------------------------------------------------------------------------------------------

    def verdict(
        self, at: float, refused: Mapping[Rung, Reason], no_degrade: Reason, degraded: bool
    ) -> list[Command] | Reason:
        """The plan for this generation, or the reason why there can be none. `refused`: rungs that may not be taken."""
        situation = Situation(
            positions={
                rank: replace(p, durable=self.state.durable.get(rank, p.durable))
                for rank, p in self.state.positions.items()
                if rank not in self.state.absent
            },
            leavers=self.state.leavers_at,
            benched={rank: p for rank, p in self.state.positions.items() if rank in self.state.absent},
            twin_keys=self.state.twin_keys,
            holdings=self.state.holdings,
            donors_per_receiver=self.policy.donors_per_receiver,
            refused=refused,
            no_degrade=no_degrade,
            durable_known=not self.policy.checkpoints or bool(self.state.durable),
        )
        at_boundary = self.state.boundary is not None
        plan = make_plan(situation, self.state.kind, at_boundary)
        if isinstance(plan, NoPlan):
            return because(Code.CANNOT_GO_ON, cause=self.state.reason, tried=plan.tried)
        if isinstance(plan, CheckpointsWanted):
            return self._ask_for_checkpoints(at, plan.tried)
        members = self.present()
        if plan.rung is Rung.RESTART:
            members = [member for member in members if member.rank in self.state.positions]  # none that rehearses
        self.state.store = self._choose_store(at)  # its host may have been lost since the generation was opened
        resume = ResumeAt(
            generation=self.state.generation,
            step=plan.step,
            members=tuple(member.id for member in members),
            donors=plan.donors,
            store=self.state.store,
            reason=plan.reason,
            leavers=tuple(self.roster.leavers[rank] for rank in plan.handed),
            rewind=plan.rewind and plan.rung is Rung.SWAP,
            rung=plan.rung,
            absent=tuple(sorted(self.state.absent)),
            from_copies=plan.from_copies,
            distrust=plan.distrust,
            tail=tail_of(plan, situation.positions),
        )
        watch = steps_to_watch(self.policy.probation, resume, degraded, self.state.probation, at_boundary)
        self.state.plan = structs.replace(resume, probation=watch)
        for member in self.roster.seated():
            if member.rank in self.state.absent and member.standing is Standing.ACTIVE:
                member.standing = Standing.BENCHED
        self._enter(Trigger.VERDICT)
        self.state.established = True  # every survivor said so, even if the news of the first commit was lost
        self.state.awaited.update(member.id for member in members)
        self.state.deadline = at + self.policy.forming_limit
        self.state.resend_at = at + self.policy.resend_every
        kind = DecisionKind.REWIND if plan.rewind else DecisionKind.VERDICT
        return [self.decision(at, kind, plan.reason, step=plan.step), self.state.plan]

    def on_resumed(self, event: ev.MemberResumed, member: Member) -> list[Command]:
        if event.generation != self.state.generation or self.state.stage is not Stage.FORMING:
            return []
        member.standing = Standing.ACTIVE
        self.state.awaited.discard(member.id)
        if not event.finite and member.rank is not None:
            self.state.not_finite.add(member.rank)
        if self.state.awaited or self.everything_is_saved:
            return []
        assert self.state.plan is not None
        self._enter(Trigger.ALL_RESUMED)
        self.state.attempts, self.state.attempted_at = 0, None
        self.state.deadline = self.state.resend_at = None
        self.state.kind = RecoveryKind(below=self.state.kind.below)  # which the checks after a recovery take note of
        resumed = self.decision(event.at, DecisionKind.RESUMED, self.state.reason, step=self.state.plan.step)
        over: list[Command] = [
            KillMember(member=leaver.id, reason=because(Code.HANDED_OVER, rank=leaver.rank))
            for leaver in self.roster.departing()
        ]
        moved = self._tell_other_devices(event.at)
        return [self.record(), resumed, *moved, *over]  # a coordinator that takes over must know that nothing goes on

    def _tell_other_devices(self, at: float) -> list[Command]:
        """Ranks that go on with another device than the one on which they have computed so far."""
        if not self.hosts.with_devices:
            return []
        moved = [devices.note_where(member, self.roster, self.state.devices) for member in self.present()]
        ranks = tuple(reason for reason in moved if reason is not None)
        return [self.decision(at, DecisionKind.DEVICE, because(Code.ON_OTHER_DEVICES, ranks=ranks))] if ranks else []

    def preparation_deadline(self, member: MemberId) -> float:
        """A joiner that sets up for as long as the founders did is not slow."""
        allowed = max(self.policy.preparation_limit, self.policy.setups_per_preparation * self.state.setup_seconds)
        return self.roster.members[member].assigned_at + allowed

    @property
    def is_saving(self) -> bool:
        """Every member saves what it holds, because all processes are to begin anew."""
        return (
            self.state.stage is Stage.FORMING and self.state.plan is not None and self.state.plan.rung is Rung.RESTART
        )

    @property
    def everything_is_saved(self) -> bool:
        """... and waits to be ended."""
        return self.is_saving and not self.state.awaited

    def kill(self, at: float, members: list[Member], reason: Reason) -> list[Command]:
        """End members of which `watchdog` has evidence enough, or as was requested. Their loss opens the next
        generation."""
        commands: list[Command] = []
        for member in members:
            if member.id in self.state.killed:
                continue
            self.state.killed.add(member.id)
            commands += [
                self.decision(at, DecisionKind.KILL, reason, member.rank, member.id),
                KillMember(member=member.id, reason=reason, hang=True),
            ]
        return commands

    # -- small change -------------------------------------------------------------------------------------------------

    def record(self) -> RecordGeneration:
        return RecordGeneration(
            generation=self.state.generation,
            founded_in=self.state.founded_in,
            holders=tuple(sorted(self.roster.holders.items())),
            absent=tuple(sorted(self.state.absent)),
        )

    def decision(
        self,
        at: float,
        kind: DecisionKind,
        reason: Reason,
        rank: Rank | None = None,
        member: MemberId | None = None,
        step: StepNumber | None = None,
    ) -> RecordDecision:
        return RecordDecision(
            at=at, generation=self.state.generation, kind=kind, reason=reason, rank=rank, member=member, step=step
        )
