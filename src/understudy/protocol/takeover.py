"""What a coordinator leaves to its successor, and how the successor goes on.

The facts of a membership are recorded with every generation, and again when it has resumed. They are enough to go on:
whatever else a coordinator knew (positions, who is warm, twin keys) the members say again when their hosts have found
the new one; a test compares the two machines field by field. A recovery that was under way is not continued but opened
again, in the next generation; that is what every new fault does too. Whoever prepared for a rank that was to move, or
was leaving one, is not known to the successor and is dismissed; the move begins anew.
"""

from dataclasses import dataclass

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol.commands import Command, StopJob
from understudy.protocol.job import JobMachine
from understudy.protocol.ladder import Ladder
from understudy.protocol.policy import Policy
from understudy.protocol.probation import Probation, StepDown
from understudy.protocol.recovery import Unfit
from understudy.protocol.roster import Member, Standing
from understudy.protocol.rungs import Rung
from understudy.protocol.stages import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    id: MemberId
    host: HostId
    rank: Rank | None
    slot: int
    standing: Standing
    assigned_in: Generation
    founder: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """`suspect_for`: seconds, because two coordinators do not share a clock."""

    id: HostId
    ranks: int
    spares: int
    place: int
    store: str
    present: bool
    suspect_for: float
    failures_in_a_row: int
    draining: bool = False
    places: int | None = None  # none: of a coordinator that did not know of places


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one membership. `settled`: no recovery is under way. `pace`: of steps, from which deadlines follow."""

    generation: Generation
    founded_in: Generation
    established: bool
    settled: bool
    members: tuple[MemberFacts, ...]
    hosts: tuple[HostFacts, ...]
    homes: tuple[tuple[Rank, HostId, int], ...]
    store: HostId
    pace: float
    next_number: int
    start_overs: int
    replacements: int
    left: tuple[Rank, ...]
    released: bool
    stopped: StopJob | None = None
    moves: tuple[tuple[Rank, str], ...] = ()  # ranks that are to move, and why
    absent: tuple[Rank, ...] = ()  # the world goes on without these
    replicas: tuple[tuple[Rank, tuple[Rank, ...]], ...] = ()
    rungs_taken: tuple[tuple[Rung, int], ...] = ()
    rungs_under_way: tuple[Rung, ...] = ()
    restart: bool = False
    cold: bool = False
    agreed: StepNumber | None = None  # the newest state that all twins had in common
    rewind: bool = False
    probation: Probation | None = None
    step_down: StepDown | None = None
    torn_at: StepNumber | None = None
    hopeless: tuple[Rank, ...] = ()
    unfit: tuple[tuple[Rank, Unfit], ...] = ()
    failures: tuple[tuple[Rank, StepNumber | None, str], ...] = ()  # the last of each rank (`blame`)
    deaths: tuple[tuple[Rank, StepNumber | None, int], ...] = ()
    setup_seconds: float = 0.0
    barren: tuple[StepNumber | None, int] = (None, 0)
    complained: bool = False  # that the pool cannot be filled

    def active(self) -> dict[Rank, MemberId]:
        """Who trained, by rank."""
        members = (member for member in self.members if member.standing is Standing.ACTIVE)
        return {member.rank: member.id for member in members if member.rank is not None}


def facts_of(machine: JobMachine, at: float) -> Facts:
    """Linear in the size of the world; asked for once per generation."""
    recovery = machine.recovery
    return Facts(
        generation=recovery.generation,
        founded_in=recovery.founded_in,
        established=recovery.established,
        settled=machine.released or machine.stage in (Stage.TRAINING, Stage.FOUNDING),
        members=tuple(
            MemberFacts(
                id=member.id,
                host=member.host,
                rank=member.rank,
                slot=member.slot,
                standing=member.standing,
                assigned_in=member.assigned_in,
                founder=member.founder,
            )
            for member in machine.roster.members.values()
            if member.rank is None or machine.roster.holders.get(member.rank) == member.id
        ),
        hosts=tuple(
            HostFacts(
                id=host.id,
                ranks=host.ranks,
                spares=host.spares,
                place=host.place,
                store=host.store,
                present=host.present,
                suspect_for=max(0.0, host.suspect_until - at),
                failures_in_a_row=host.failures_in_a_row,
                draining=host.draining,
                places=host.places,
            )
            for host in machine.hosts.by_id.values()
        ),
        homes=tuple((rank, host, slot) for rank, (host, slot) in sorted(recovery.homes.items())),
        store=recovery.store,
        pace=recovery.pace,
        next_number=machine.roster.next_number,
        start_overs=recovery.start_overs,
        replacements=machine.pool.replacements,
        left=tuple(sorted(machine.left)),
        released=machine.released,
        stopped=machine.stopped,
        moves=tuple(sorted(machine.migration.reasons.items())),
        agreed=machine.agreement.agreed,
        rewind=recovery.rewind,
        probation=recovery.probation,
        step_down=recovery.step_down,
        absent=tuple(sorted(recovery.absent)),
        replicas=tuple((rank, tuple(sorted(replica))) for rank, replica in sorted(recovery.replicas.items())),
        rungs_taken=tuple(machine.ladder.taken.items()),
        rungs_under_way=tuple(sorted(machine.ladder.under_way, key=lambda rung: rung.value)),
        restart=recovery.restart,
        cold=recovery.cold,
        torn_at=machine.agreement.torn_at,
        hopeless=tuple(sorted(machine.migration.hopeless)),
        unfit=tuple(sorted(recovery.unfit.items())),
        failures=tuple((rank, step, what) for rank, (step, what) in sorted(machine.blame.last.items())),
        deaths=tuple((rank, step, count) for rank, (step, count) in sorted(machine.blame.deaths.items())),
        setup_seconds=recovery.setup_seconds,
        barren=machine.watchdog.barren,
        complained=machine.pool.complained,
    )


def take_over(policy: Policy, facts: Facts, at: float) -> tuple[JobMachine, tuple[Command, ...]]:
    """A machine that goes on from `facts`, and what is to be done first."""
    machine = JobMachine(policy)
    recovery = machine.recovery
    for fact in facts.hosts:
        host = machine.hosts.join(fact.id, fact.ranks, fact.spares, fact.place, fact.store)
        host.suspect_until, host.failures_in_a_row = at + fact.suspect_for, fact.failures_in_a_row
        host.draining = fact.draining
        host.places = host.places if fact.places is None else fact.places
        if fact.present:
            machine.hosts.fall_silent(host, at, policy.takeover_patience)
        else:
            machine.hosts.lose(host, host.suspect_until)
    for known in facts.members:
        _restore_member(machine, known, at)
    machine.roster.next_number = facts.next_number
    machine.pool.replacements = facts.replacements
    machine.left, machine.released = set(facts.left), facts.released
    recovery.generation, recovery.founded_in = facts.generation, facts.founded_in
    recovery.established, recovery.start_overs = facts.established, facts.start_overs
    recovery.homes = {rank: (host, slot) for rank, host, slot in facts.homes}
    recovery.store, recovery.pace = facts.store, facts.pace
    machine.migration.reasons = dict(facts.moves)
    machine.agreement.agreed, recovery.rewind = facts.agreed, facts.rewind
    recovery.absent = frozenset(facts.absent)
    recovery.replicas = {rank: frozenset(replica) for rank, replica in facts.replicas}
    machine.ladder = Ladder(dict(facts.rungs_taken), set(facts.rungs_under_way))
    recovery.restart, recovery.cold = facts.restart, facts.cold
    recovery.probation, recovery.step_down = facts.probation, facts.step_down
    machine.agreement.torn_at, machine.migration.hopeless = facts.torn_at, set(facts.hopeless)
    recovery.unfit, recovery.setup_seconds = dict(facts.unfit), facts.setup_seconds
    machine.blame.last = {rank: (step, what) for rank, step, what in facts.failures}
    machine.blame.deaths = {rank: (step, count) for rank, step, count in facts.deaths}
    machine.watchdog.barren, machine.pool.complained = facts.barren, facts.complained
    if facts.stopped is not None:
        machine.stopped = facts.stopped
        return machine, (facts.stopped,)
    if not facts.settled:
        recovery.stage = Stage.STOPPING
        reason = "a new coordinator took over while the world was being formed again"
        return machine, machine.open_again(at, reason)
    recovery.stage = Stage.TRAINING if facts.established else Stage.FOUNDING
    return machine, ()


def _restore_member(machine: JobMachine, known: MemberFacts, at: float) -> None:
    """As if it were connected: what it is told too early is lost, and said again when it says hello."""
    roster = machine.roster
    member = Member(known.id, Standing.STARTING, known.host, connected=True)
    roster.members[member.id] = member
    if known.rank is None:
        roster.starting[member.id] = None  # if it is warm, it will say so again
        roster.spares_on[member.host] = roster.spares_on.get(member.host, 0) + 1
        return
    member.rank, member.slot, member.standing = known.rank, known.slot, known.standing
    member.assigned_in, member.assigned_at, member.founder = known.assigned_in, at, known.founder
    roster.holders[known.rank] = member.id
    roster.slots.setdefault(member.host, {})[known.slot] = member.id
