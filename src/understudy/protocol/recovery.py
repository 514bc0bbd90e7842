"""One recovery: open a generation, collect positions and joiners, give the verdict, wait until all have resumed.

Knows what is awaited from whom in the current generation. Called only by `job`. Messages may be lost: whatever was not
answered is said again on a tick, and every answer may come twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
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
from understudy.protocol.donors import named, without_twin
from understudy.protocol.hosts import THIS_HOST, Hosts
from understudy.protocol.neighbours import cover
from understudy.protocol.planning import CheckpointsWanted, Situation, make_plan, tail_of
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.positions import Position
from understudy.protocol.probation import Probation, StepDown, steps_to_watch
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.rungs import Rung
from understudy.protocol.stages import Stage
from understudy.protocol.telling import ask_for_checkpoints, assign, catch_up, leave

_TOGETHER = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no replacement can be made equal to a rank, though others could be: `restart_helps` when all begin anew."""

    why: str
    restart_helps: bool


@dataclass(slots=True)
class Recovery:
    policy: Policy
    roster: Roster
    hosts: Hosts
    stage: Stage = Stage.FOUNDING
    generation: Generation = Generation(0)
    founded_in: Generation = Generation(0)
    reason: str = ""
    opened_at: float = 0.0  # when this generation was
    setup_seconds: float = 0.0  # from the founding of the world to its first step
    pace: float = 0.0
    established: bool = False  # somebody has its first step behind it
    start_overs: int = 0
    attempts: int = 0
    attempted_at: float | None = None
    awaited: set[MemberId] = field(default_factory=set)
    joining: set[MemberId] = field(default_factory=set)
    positions: dict[Rank, Position] = field(default_factory=dict)
    twin_keys: dict[Rank, str] = field(default_factory=dict)
    holdings: dict[str, frozenset[int]] = field(default_factory=dict)  # by twin key
    replicas: dict[Rank, frozenset[Rank]] = field(default_factory=dict)  # the ranks without which each cannot compute
    absent: frozenset[Rank] = frozenset()  # the world goes on without these
    homes: dict[Rank, tuple[HostId, int]] = field(default_factory=dict)  # host and slot of its last holder
    store: HostId = THIS_HOST  # whose c10d store is used in this generation
    boundary: StepNumber | None = None  # the generation is left before this step, and not at once
    leavers_at: dict[Rank, Position] = field(default_factory=dict)
    rewind: bool = False  # to the last state that all twins agreed on; until the world has resumed there
    restart: bool = False  # all processes are to begin anew, once the state is saved
    cold: bool = False  # ranks go to new processes, whether spares are wanted or not; until the world has resumed
    probation: Probation | None = None
    step_down: StepDown | None = None  # until the world has resumed
    not_finite: set[Rank] = field(default_factory=set)  # who said so when it resumed
    plan: ResumeAt | None = None
    deadline: float | None = None
    resend_at: float | None = None
    killed: set[MemberId] = field(default_factory=set)
    durable: dict[Rank, tuple[StepNumber, ...]] = field(default_factory=dict)  # told because it was asked for
    asked_for_checkpoints: set[MemberId] = field(default_factory=set)  # and have not answered yet
    unfit: dict[Rank, Unfit] = field(default_factory=dict)  # ranks that no single replacement can take over

    def copy(self, roster: Roster, hosts: Hosts) -> "Recovery":
        twin = object.__new__(Recovery)  # the explorer does this very often, and `replace` takes much longer
        for name in _FIELDS:
            setattr(twin, name, getattr(self, name))
        twin.roster, twin.hosts = roster, hosts
        twin.awaited, twin.joining, twin.killed = set(self.awaited), set(self.joining), set(self.killed)
        twin.positions, twin.leavers_at = dict(self.positions), dict(self.leavers_at)
        twin.twin_keys, twin.holdings = dict(self.twin_keys), dict(self.holdings)
        twin.replicas, twin.homes = dict(self.replicas), dict(self.homes)
        twin.not_finite = set(self.not_finite)
        twin.durable, twin.asked_for_checkpoints = dict(self.durable), set(self.asked_for_checkpoints)
        twin.unfit = dict(self.unfit)
        return twin

    # -- founding -------------------------------------------------------------------------------------------------

    def found(self, at: float, pool: SparePool, reason: str) -> list[Command]:
        """Man every rank anew. The very first generation is founded like every later start over."""
        first = self.generation == 0
        self.start_overs += 0 if first else 1
        self._next_generation(at, reason)
        self.founded_in = self.generation
        self.stage, self.established = Stage.FOUNDING, False
        self.twin_keys.clear()
        self.holdings.clear()
        self.replicas.clear()
        self.unfit.clear()
        self.absent = frozenset()
        starts: list[Command] = []
        assigns: list[Command] = []
        first_homes = [host.id for host in self.hosts.founders() for _ in range(host.ranks)] if first else []
        for number in range(self.policy.world_size):
            rank = Rank(number)
            if first:
                member, start = pool.start(rank, first_homes[number], first=True)
            else:
                member, start = pool.take(rank, at, self.home(rank), stay=True)
            self._seat(member, rank, Standing.ACTIVE, at)
            starts += self._seated(start, member)
            assigns += assign(self, member)
        kind = DecisionKind.START if first else DecisionKind.START_OVER
        return [self.decision(at, kind, reason), self.record(), *starts, *assigns]

    def on_connected(self, member: Member) -> list[Command]:
        member.connected = True
        return [*assign(self, member), *catch_up(self, (member,))]

    def on_established(self, event: ev.MemberEstablished, member: Member) -> list[Command]:
        """True for good, even if a newer generation is open by now."""
        at, known_before = event.at, len(self.twin_keys)
        if member.rank is not None:
            self._learn(member.rank, event.twin_key, event.holdings)
            if event.replica:
                self.replicas[member.rank] = frozenset(event.replica)
        news = not self.established
        self.established = True
        if self.stage is Stage.FOUNDING:
            self.stage, self.setup_seconds = Stage.TRAINING, at - self.opened_at
        all_known = known_before < len(self.twin_keys) == self.policy.world_size
        warnings = self._warn_of_ranks_without_twin(at) if all_known else []
        if news and event.began_at:
            text = (
                f"{Rung.CHECKPOINT.value}: the job began with the state before step {event.began_at}, which an earlier "
                "run had written: no process of that run was left, so no other rung could hold"
            )
            warnings.append(self.decision(at, DecisionKind.CHECKPOINT, text, step=event.began_at))
        return [self.record(), *warnings] if news else warnings  # whoever takes over must not start over

    def _warn_of_ranks_without_twin(self, at: float) -> list[Command]:
        alone = without_twin(self.twin_keys, self.holdings)
        if not alone:
            return []
        who = f"{named(alone)} of {self.policy.world_size} {'has' if len(alone) == 1 else 'have'} no twin"
        hosts = {rank: host for rank, (host, _) in self.homes.items()}
        covered = cover(alone, hosts, self.policy.peer_memory)
        return [self.decision(at, DecisionKind.WARN, f"{who}: {covered}")]

    def cannot_start_over(self) -> str | None:
        if self.start_overs >= self.policy.max_start_overs:
            return (
                f"the world has started over {self.start_overs} times without a first commit "
                f"(limit {self.policy.max_start_overs}, --max-restarts)"
            )
        return None

    # -- opening --------------------------------------------------------------------------------------------------

    def vacancies(self) -> list[Rank]:
        taken = self.roster.holders.keys() | self.absent
        return [Rank(r) for r in range(self.policy.world_size) if Rank(r) not in taken]

    @property
    def present_count(self) -> int:
        """How many ranks the world consists of now; without looking at each."""
        return self.policy.world_size - len(self.absent)

    def present(self) -> list[Member]:
        """Members with a rank that the world does not go on without, by rank."""
        return [member for member in self.roster.seated() if member.rank not in self.absent]

    def cannot_open(self) -> str | None:
        if self.attempts >= self.policy.recovery_attempts:
            return f"{self.attempts} generations in a row did not resume"
        return None

    def open(
        self,
        at: float,
        pool: SparePool,
        reason: str,
        kind: DecisionKind,
        rank: Rank | None = None,
        member: MemberId | None = None,
    ) -> list[Command]:
        """Abandon the current generation. Its vacant ranks are manned at once, unless the world is so young that it
        will probably start over."""
        self._next_generation(at, reason)
        self.stage = Stage.STOPPING
        self._count_attempt(at)
        told = self._await_reports()
        self.resend_at = at + self.policy.resend_every
        manned = self.man_vacancies(at, pool) if self.established else []
        return [self.decision(at, kind, reason, rank, member), self.record(), *leave(self, told), *manned]

    def move(self, at: float, ranks: list[Rank], boundary: StepNumber, steps: int, reason: str) -> list[Command]:
        """Abandon the current generation at a boundary, so many `steps` from now. The understudies of `ranks` are
        prepared, and hold them from now on."""
        self._next_generation(at, reason)
        self.stage, self.boundary = Stage.STOPPING, boundary
        for rank in ranks:
            self.roster.hand_over(rank)
            holder = self.roster.holder(rank)
            self.homes[rank] = (holder.host, holder.slot)
        told = self._await_reports()
        self.deadline = at + self.policy.stall_deadline(self.pace) + steps * self.pace
        self.resend_at = at + self.policy.resend_every
        return [self.decision(at, DecisionKind.MOVE, reason, step=boundary), self.record(), *leave(self, told)]

    def come_back(self, at: float, ranks: list[Rank], boundary: StepNumber, steps: int) -> list[Command]:
        """There is somebody prepared for each of these absent ranks: they come back at a boundary."""
        self.absent -= frozenset(ranks)
        rest = f"still absent: {named(sorted(self.absent))}" if self.absent else "the world is whole again"
        reason = f"{named(ranks)} {'comes' if len(ranks) == 1 else 'come'} back before step {boundary}: {rest}"
        return self.move(at, [], boundary, steps, reason)

    def seat_absent(self, spare: Member, rank: Rank, at: float) -> list[Command]:
        """It prepares for a rank that the world goes on without."""
        self._seat(spare, rank, Standing.JOINING, at)
        return [self.record(), *assign(self, spare)]

    def _await_reports(self) -> list[Member]:
        """Who is to report, and who can be told so."""
        told: list[Member] = []
        for member in (*self.roster.seated(), *self.roster.departing()):
            if member.standing is Standing.JOINING:
                if member.rank not in self.absent:
                    self.joining.add(member.id)
            elif member.connected:
                self.awaited.add(member.id)
            elif member.rank is not None:  # it has not even been told its rank, so it has not begun
                self.positions[member.rank] = Position(holds=None, established=False)
            if member.connected:
                told.append(member)
        return told

    def promote_understudies(self) -> None:
        """A rank that was to move was lost instead: whoever prepared for it has it now."""
        for rank in self.vacancies():
            if rank in self.roster.understudies:
                member = self.roster.promote(rank)
                self.homes[rank] = (member.host, member.slot)

    def _count_attempt(self, at: float) -> None:
        """Many members may be lost together, and each loss is told by itself: together they are one attempt."""
        if self.attempted_at is None or at >= self.attempted_at + _TOGETHER:
            self.attempted_at = at
            self.attempts += 1

    def man_vacancies(self, at: float, pool: SparePool) -> list[Command]:
        """Give every vacant rank to a spare (or to a process that is started for it), as far as there are any now."""
        self.store = self._choose_store(at)
        commands: list[Command] = []
        for vacant in self.vacancies():
            if not self.cold and not pool.can_take(at):
                break
            joiner, start = pool.take(vacant, at, self.home(vacant))
            self._seat(joiner, vacant, Standing.JOINING, at)
            self.joining.add(joiner.id)
            commands += [*self._seated(start, joiner), *assign(self, joiner)]
        return commands

    def home(self, rank: Rank) -> HostId | None:
        return self.homes[rank][0] if rank in self.homes else None

    def _seat(self, member: Member, rank: Rank, standing: Standing, at: float) -> None:
        host, slot = self.homes.get(rank, (None, 0))
        wanted = slot if host == member.host else None
        self.roster.seat(member, rank, standing, self.generation, at, wanted)
        self.homes[rank] = (member.host, member.slot)

    def _seated(self, starts: list[Command], member: Member) -> list[Command]:
        """Tell a process that is started for a rank where it will be, before it asks."""
        per_host = max(1, self.policy.world_size // self.policy.hosts)
        host = self.hosts.by_id.get(member.host)
        seat = Seat(
            rank=member.rank or Rank(0),
            local_rank=member.slot,
            local_world_size=per_host,
            node_rank=0 if host is None else host.place,
            nodes=self.policy.hosts,
            store=self.store,
        )
        return [replace(start, seat=seat) if isinstance(start, StartMember) else start for start in starts]

    def _choose_store(self, at: float) -> HostId:
        """The store stays where it is as long as that host is well. It holds nothing that a recovery does not set
        again."""
        if self.hosts.usable(self.store, at):
            return self.store
        well = [host for host in self.hosts.present() if self.hosts.usable(host.id, at)]
        return min(well, key=lambda host: (host.place, host.id)).id if well else self.store

    def _next_generation(self, at: float, reason: str) -> None:
        self.generation = Generation(self.generation + 1)
        self.store = self._choose_store(at)
        self.reason, self.opened_at = reason, at
        self.awaited.clear()
        self.joining.clear()
        self.positions.clear()
        self.killed.clear()
        self.leavers_at.clear()
        self.not_finite.clear()
        self.durable.clear()
        self.asked_for_checkpoints.clear()
        self.plan = self.boundary = None
        self.deadline = self.resend_at = None

    # -- collecting -------------------------------------------------------------------------------------------------

    def on_position(self, event: ev.PositionReported, member: Member) -> list[Command]:
        if member.rank is not None and event.twin_key is not None and event.generation >= self.founded_in:
            self._learn(member.rank, event.twin_key, event.holdings)  # true in whatever stage it is heard
        if event.generation != self.generation or self.stage is not Stage.STOPPING or member.rank is None:
            return []
        if member.standing is Standing.JOINING or self.roster.is_understudy(member):
            return []  # its rehearsal is not over, or the rank is another one's; what it says counts later
        position = event.position
        if not member.founder:
            position = replace(position, established=True)  # only founding members have a first step
        (self.leavers_at if member.leaving else self.positions)[member.rank] = position
        if not event.provisional:
            self.awaited.discard(member.id)
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
        self.joining.discard(member.id)
        self.positions[member.rank] = Position(holds=None, saved=event.saved, keeps=event.keeps)
        return []

    def on_checkpoints(self, event: ev.CheckpointsTold, member: Member) -> list[Command]:
        if event.generation == self.generation and member.rank is not None:
            self.durable[member.rank] = event.steps
            self.asked_for_checkpoints.discard(member.id)
        return []

    def _ask_for_checkpoints(self, at: float, why: str) -> list[Command]:
        members = tuple(member.id for member in self.present())
        self.asked_for_checkpoints = set(members)
        self.resend_at = at + self.policy.resend_every
        text = f"{self.reason}; {why}; durable checkpoints are looked for"
        return [self.decision(at, DecisionKind.WAIT, text), *ask_for_checkpoints(self)]

    def _learn(self, rank: Rank, twin_key: str, holdings: tuple[int, ...]) -> None:
        """What a rank holds stays the same for as long as its world; that somebody does not say it again means
        nothing."""
        self.twin_keys[rank] = twin_key
        if holdings and twin_key not in self.holdings:
            self.holdings[twin_key] = frozenset(holdings)

    def must_start_over(self) -> bool:
        """Somebody is still in its first step: then nobody has committed it, and nothing is lost."""
        if self.established:
            return False  # a commit that is known must never be thrown away
        unsettled = any(not position.established for position in self.positions.values())
        return unsettled or all(position.holds is None for position in self.positions.values())

    # -- verdict ----------------------------------------------------------------------------------------------------

    def verdict(self, at: float, refused: Mapping[Rung, str], no_degrade: str, degraded: bool) -> list[Command] | str:
        """The plan for this generation, or the reason why there can be none. `refused`: rungs that may not be taken."""
        situation = Situation(
            positions={
                rank: replace(p, durable=self.durable.get(rank, p.durable))
                for rank, p in self.positions.items()
                if rank not in self.absent
            },
            leavers=self.leavers_at,
            benched={rank: p for rank, p in self.positions.items() if rank in self.absent},
            twin_keys=self.twin_keys,
            holdings=self.holdings,
            donors_per_receiver=self.policy.donors_per_receiver,
            refused=refused,
            no_degrade=no_degrade,
            durable_known=not self.policy.checkpoints or bool(self.durable),
        )
        at_boundary, down = self.boundary is not None, self.step_down
        plan = make_plan(situation, rewind=self.rewind, at_boundary=at_boundary, restart=self.restart, step_down=down)
        if isinstance(plan, str):
            return f"{self.reason}; {plan}"
        if isinstance(plan, CheckpointsWanted):
            return self._ask_for_checkpoints(at, plan.why)
        members = self.present()
        if plan.rung is Rung.RESTART:
            members = [member for member in members if member.rank in self.positions]  # who rehearses has nothing
        self.store = self._choose_store(at)  # its host may have been lost since the generation was opened
        resume = ResumeAt(
            generation=self.generation,
            step=plan.step,
            members=tuple(member.id for member in members),
            donors=plan.donors,
            store=self.store,
            reason=plan.reason,
            leavers=tuple(self.roster.leavers[rank] for rank in plan.handed),
            rewind=plan.rewind and plan.rung is Rung.SWAP,
            rung=plan.rung,
            absent=tuple(sorted(self.absent)),
            from_copies=plan.from_copies,
            distrust=plan.distrust,
            tail=tail_of(plan, situation.positions),
        )
        watch = steps_to_watch(self.policy.probation, resume, degraded, self.probation, at_boundary)
        self.plan = replace(resume, probation=watch)
        for member in self.roster.seated():
            if member.rank in self.absent and member.standing is Standing.ACTIVE:
                member.standing = Standing.BENCHED
        self.stage = Stage.FORMING
        self.established = True  # every survivor said so, even if the news of the first commit was lost
        self.awaited.update(member.id for member in members)
        self.deadline = at + self.policy.forming_limit
        self.resend_at = at + self.policy.resend_every
        kind = DecisionKind.REWIND if plan.rewind else DecisionKind.VERDICT
        return [self.decision(at, kind, plan.reason, step=plan.step), self.plan]

    def on_resumed(self, event: ev.MemberResumed, member: Member) -> list[Command]:
        if event.generation != self.generation or self.stage is not Stage.FORMING:
            return []
        member.standing = Standing.ACTIVE
        self.awaited.discard(member.id)
        if not event.finite and member.rank is not None:
            self.not_finite.add(member.rank)
        if self.awaited or self.everything_is_saved:
            return []
        assert self.plan is not None
        self.stage, self.cold = Stage.TRAINING, False
        self.attempts, self.attempted_at = 0, None
        self.deadline = self.resend_at = None
        self.rewind = False
        resumed = self.decision(event.at, DecisionKind.RESUMED, self.reason, step=self.plan.step)
        over: list[Command] = [
            KillMember(member=leaver.id, reason=f"it has handed rank {leaver.rank} over")
            for leaver in self.roster.departing()
        ]
        return [self.record(), resumed, *over]  # whoever takes over from us must know that nothing is under way

    def preparation_deadline(self, member: MemberId) -> float:
        """A joiner that sets up for as long as the founders did is not slow."""
        allowed = max(self.policy.preparation_limit, self.policy.setups_per_preparation * self.setup_seconds)
        return self.roster.members[member].assigned_at + allowed

    @property
    def is_saving(self) -> bool:
        """Everybody saves what it holds, because all processes are to begin anew."""
        return self.stage is Stage.FORMING and self.plan is not None and self.plan.rung is Rung.RESTART

    @property
    def everything_is_saved(self) -> bool:
        """... and waits to be ended."""
        return self.is_saving and not self.awaited

    def kill(self, at: float, members: list[Member], reason: str) -> list[Command]:
        """End members of which `watchdog` has evidence enough, or as somebody asked. Their loss opens the next
        generation."""
        commands: list[Command] = []
        for member in members:
            if member.id in self.killed:
                continue
            self.killed.add(member.id)
            commands += [
                self.decision(at, DecisionKind.KILL, reason, member.rank, member.id),
                KillMember(member=member.id, reason=reason, hang=True),
            ]
        return commands

    # -- small change -------------------------------------------------------------------------------------------------

    def record(self) -> RecordGeneration:
        return RecordGeneration(
            generation=self.generation,
            founded_in=self.founded_in,
            holders=tuple(sorted(self.roster.holders.items())),
            absent=tuple(sorted(self.absent)),
        )

    def decision(
        self,
        at: float,
        kind: DecisionKind,
        reason: str,
        rank: Rank | None = None,
        member: MemberId | None = None,
        step: StepNumber | None = None,
    ) -> RecordDecision:
        return RecordDecision(
            at=at, generation=self.generation, kind=kind, reason=reason, rank=rank, member=member, step=step
        )


_FIELDS = tuple(field.name for field in fields(Recovery))
