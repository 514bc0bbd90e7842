"""What is done about members that make no progress: waited for, replaced, or freed; always with evidence.

The rules for each condition are in `liveness`. Here they meet the rest of the job. A member is ended only if it is
stopped or deaf while others wait for it, or has been busy for too long while all others wait for it; and only if the
job can go on without it: somebody else holds its state, and somebody can take over its rank or the world can do
without it. Everything else is waited for, and said: once, and again at growing intervals.

When the evidence is too old to act upon, agents are asked to look closely (`WatchClosely`). Called only by `job`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from understudy.foundation.ids import MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol import lateness
from understudy.protocol.commands import Command, DecisionKind, Outcome, WatchClosely
from understudy.protocol.donors import NoDonor, choose_donors, named
from understudy.protocol.ladder import cannot_degrade
from understudy.protocol.liveness import (
    UNABLE_TO_GIVE,
    UNRESPONSIVE,
    Condition,
    Sighting,
    Sightings,
    Watched,
    busy_limit,
    in_recovery,
    in_training,
    is_gone,
)
from understudy.protocol.roster import Member, Standing
from understudy.protocol.stages import Stage

if TYPE_CHECKING:
    from understudy.protocol.job import JobMachine

_LOOK_EVERY = 1.0  # seconds between two judgements while somebody makes no progress
_GATHER = 0.2  # seconds between two judgements while many hosts tell what they see: each costs a look at all ranks
_LONGEST_GAP = 600.0  # seconds between two remarks about the same silence
_FIRST_REMARK_ON_SETUP = 60.0  # seconds
_MOST_PATIENCE = 16
_PATIENT_FOR = 600.0  # seconds for which a false alarm makes the deadline longer
_CONTACT_GRACE = 2.0  # seconds in which the loss that explains a broken connection is usually heard of
_BARREN = 3  # recoveries at one step without a new fault


@dataclass(slots=True)
class Watchdog:
    """`look_at`: when to judge next. `barren`: how often the world has resumed at the same step without a new fault."""

    sightings: Sightings = field(default_factory=Sightings)
    look_at: float | None = None
    judged_at: float = float("-inf")
    trouble: bool = False  # somebody was seen to make no progress, and nobody has said since that all is well
    asked_at: float = float("-inf")
    remark_at: float | None = None
    remark_gap: float = 0.0
    patience: int = 1
    patient_until: float = float("-inf")
    contact_lost: tuple[float, str] | None = None  # when it was first told, and by whom
    barren: tuple[StepNumber | None, int] = (None, 0)
    heard_at: dict[MemberId, float] = field(
        default_factory=dict
    )  # when members were first seen to know this generation

    def copy(self) -> "Watchdog":
        return Watchdog(
            self.sightings.copy(),
            self.look_at,
            self.judged_at,
            self.trouble,
            self.asked_at,
            self.remark_at,
            self.remark_gap,
            self.patience,
            self.patient_until,
            self.contact_lost,
            self.barren,
            dict(self.heard_at),
        )

    def new_generation(self, at: float) -> None:
        """Whatever was told of the old one says nothing any more, but who was busy still is."""
        self.contact_lost = None
        self.heard_at.clear()
        self.look_at = at + _LOOK_EVERY

    def gathering(self, at: float) -> None:
        """Hosts come one by one; the world is not founded yet."""
        if self.look_at is None:
            self.look_at = at + _FIRST_REMARK_ON_SETUP

    def world_founded(self, at: float) -> None:
        self.new_generation(at)
        self.look_at = at + _FIRST_REMARK_ON_SETUP

    def fault_seen(self) -> None:
        """A member or a host was lost: a recovery that follows is no sign of standing still."""
        self.barren = (None, 0)

    def resumed(self, step: StepNumber) -> None:
        former, count = self.barren
        self.barren = (step, count + 1 if former == step else 1)
        self.all_is_well()

    def all_is_well(self) -> None:
        self.trouble = False
        self.remark_at, self.remark_gap = None, 0.0
        self.look_at = None

    def next_deadline(self) -> float | None:
        contact = None if self.contact_lost is None else self.contact_lost[0] + _CONTACT_GRACE
        return min((d for d in (self.look_at, contact) if d is not None), default=None)


# -- what agents and members tell -------------------------------------------------------------------------------------


def on_sightings(machine: "JobMachine", event: ev.ActivityObserved) -> list[Command]:
    known = [sighting for sighting in event.sightings if sighting.member in machine.roster.members]
    watchdog = machine.watchdog
    watchdog.sightings.take(event.at, known)
    for sighting in known:
        if sighting.heard >= machine.generation:
            watchdog.heard_at.setdefault(sighting.member, event.at)
    if event.host in machine.hosts.by_id:
        machine.hosts.by_id[event.host].spoke_at = event.at
    next_at = watchdog.judged_at + (_GATHER if len(machine.hosts.by_id) > 1 else 0.0)
    if event.at >= next_at:
        return judge(machine, event.at)
    watchdog.look_at = next_at if watchdog.look_at is None else min(watchdog.look_at, next_at)
    return []


def on_contact_lost(machine: "JobMachine", event: ev.ContactLost, member: Member) -> list[Command]:
    """Its connections broke and no loss is known. Mostly the loss is on its way. A spare has none that could break."""
    if member.rank is None:
        return []
    trains = machine.stage in (Stage.TRAINING, Stage.FOUNDING) and not machine.released
    if event.generation == machine.generation and trains and machine.watchdog.contact_lost is None:
        machine.watchdog.contact_lost = event.at, f"rank {member.rank} ({member.id}) lost contact: {event.why}"
    return []


def on_tick(machine: "JobMachine", at: float) -> list[Command]:
    watchdog = machine.watchdog
    lost = watchdog.contact_lost
    if lost is not None and at >= lost[0] + _CONTACT_GRACE:
        watchdog.contact_lost = (at, lost[1]) if machine.hosts.silent else None  # that host comes back or is lost
        if not machine.hosts.silent:
            reason = f"{lost[1]}; no process was lost, so the groups are formed again"
            return machine.open(at, reason, DecisionKind.ALARM)
    if watchdog.look_at is not None and at >= watchdog.look_at:
        return judge(machine, at)
    return []


# -- judging ----------------------------------------------------------------------------------------------------------


def judge(machine: "JobMachine", at: float) -> list[Command]:
    """Look at everybody whose progress matters now, and act on what is certain."""
    machine.watchdog.look_at, machine.watchdog.judged_at = None, at
    if machine.released:
        return []
    commands = _end_useless_spares(machine, at)
    match machine.stage:
        case Stage.TRAINING:
            return commands + _judge_training(machine, at)
        case Stage.FOUNDING:
            return commands + _judge_founding(machine, at)
        case Stage.STOPPING | Stage.FORMING:
            return commands + _judge_recovery(machine, at)
    return commands


def _judge_training(machine: "JobMachine", at: float) -> list[Command]:
    watchdog, recovery = machine.watchdog, machine.recovery
    members = [_watched(machine, member, at) for member in recovery.present()]
    still = [watched for watched in members if watched.condition not in (None, Condition.MOVING)]
    if not still and watchdog.trouble and any(watched.sighting is None for watched in members):
        watchdog.look_at = at + _LOOK_EVERY
        return _ask(machine, at)
    watchdog.trouble = bool(still)
    if not still:
        watchdog.all_is_well()
        return []
    watchdog.look_at = at + _LOOK_EVERY
    if at >= watchdog.patient_until:
        watchdog.patience = 1
    found = in_training(machine.policy, recovery.pace, members, watchdog.patience)
    if found.unseen:
        return _ask(machine, at) if found.gone or found.late or found.deadlock is not None else []
    ended, kept = _split(machine, at, found.gone, [*found.gone, *found.late])
    if ended:
        return _end(machine, at, ended, "while others wait for it")
    late, kept_late = _split(machine, at, found.late, [*found.gone, *found.late], alive=True)
    if late:
        reason = f"{'; '.join(map(str, late))}; all others wait for it, and it is replaced unless it comes back now"
        return machine.open(at, reason, DecisionKind.ALARM)
    if found.deadlock is not None:
        return _on_deadlock(machine, at, found.deadlock, members)
    watchdog.look_at = at + _until_next(machine, at, members)
    return _remark(machine, at, _words_on_training(machine, members, {**kept, **kept_late}), _oldest(still))


def _until_next(machine: "JobMachine", at: float, members: Sequence[Watched]) -> float:
    """Seconds until something may have to be done: not more often than needed, since thousands may be asked."""
    policy, pace = machine.policy, machine.recovery.pace
    if not any(watched.condition is Condition.WAITING for watched in members):
        remark_at = machine.watchdog.remark_at
        return max(_LOOK_EVERY, (remark_at if remark_at is not None else at + policy.stall_floor) - at)
    left = [policy.stall_deadline(pace)]
    for watched in members:
        match watched.sighting:
            case Sighting(condition=Condition.STOPPED | Condition.DEAF, seconds=seconds):
                left.append(policy.unresponsive_timeout - seconds)
            case Sighting(condition=Condition.BUSY, seconds=seconds) as sighting:
                left.append(busy_limit(policy, pace, sighting) - seconds)
    return min(max(_LOOK_EVERY, min(left)), 10 * _LOOK_EVERY)


def _on_deadlock(machine: "JobMachine", at: float, seconds: float, members: Sequence[Watched]) -> list[Command]:
    """Nobody is ended: whatever they wait for, to form the groups again frees them."""
    watchdog = machine.watchdog
    doing = _in_groups(members)
    reason = f"all ranks have waited for each other for {seconds:.1f} s (--hang-floor, --hang-factor): {doing}"
    watchdog.patience = min(2 * watchdog.patience, _MOST_PATIENCE)
    watchdog.patient_until = at + _PATIENT_FOR
    return machine.open(at, reason, DecisionKind.ALARM)


def _judge_founding(machine: "JobMachine", at: float) -> list[Command]:
    """A setup may take long, and to begin again costs all of it: nobody is ended as quickly as in training."""
    watchdog, policy, recovery = machine.watchdog, machine.policy, machine.recovery
    if machine.generation == 0:
        return _judge_gathering(machine, at)
    members = [_watched(machine, member, at) for member in machine.roster.seated()]
    gone = [watched for watched in members if _gone_in_setup(machine, watched.sighting)]
    if gone:
        return _end(machine, at, gone, "in the setup of a new world")
    lasted = at - recovery.opened_at
    if lasted >= policy.setup_timeout:
        slow = [watched for watched in members if watched.condition is not Condition.WAITING] or members
        why = f"no first step within {policy.setup_timeout:g} s (--setup-timeout)"
        return _end(machine, at, slow, why)
    watchdog.look_at = at + (_LOOK_EVERY if any(w.condition in UNRESPONSIVE for w in members) else 10.0)
    if lasted < _FIRST_REMARK_ON_SETUP:
        return []
    asked = _ask(machine, at) if any(watched.sighting is None for watched in members) else []
    return asked + _remark(machine, at, _words_on_setup(machine, members, lasted), lasted)


def _judge_gathering(machine: "JobMachine", at: float) -> list[Command]:
    """The world is founded when enough hosts are there. Until then nothing is lost by giving up; machines are held."""
    watchdog, policy = machine.watchdog, machine.policy
    since = machine.recovery.opened_at
    there = [host.id for host in machine.hosts.present() if host.ranks]
    names = f" ({', '.join(there[:8])}{', ...' if len(there) > 8 else ''})" if there else ""
    missing = f"{len(there)} of {policy.hosts} hosts are there{names}"
    if at - since >= policy.setup_timeout:
        why = f"no world within {policy.setup_timeout:g} s (--setup-timeout): only {missing}"
        return machine.stop(at, Outcome.FAILED, why, 1)
    watchdog.look_at = min(at + 10.0, since + policy.setup_timeout)
    lasted = at - since
    return _remark(machine, at, f"waiting for hosts: {missing}", lasted) if lasted >= _FIRST_REMARK_ON_SETUP else []


def _gone_in_setup(machine: "JobMachine", sighting: Sighting | None) -> bool:
    """Whoever is stopped or does not answer there has the time of a busy one."""
    return (
        is_gone(machine.policy, sighting) and sighting is not None and sighting.seconds >= machine.policy.busy_timeout
    )


def _gone_while_joining(machine: "JobMachine", sighting: Sighting | None) -> bool:
    """The world waits for it. But in a setup libraries hold the interpreter lock for long."""
    stopped = sighting is not None and sighting.condition is Condition.STOPPED
    return is_gone(machine.policy, sighting) and (stopped or _gone_in_setup(machine, sighting))


def _judge_recovery(machine: "JobMachine", at: float) -> list[Command]:
    watchdog, recovery, policy = machine.watchdog, machine.recovery, machine.policy
    watchdog.look_at = at + _LOOK_EVERY
    awaited_for = at - recovery.opened_at
    there = [member for member in _needed_now(machine) if member.host not in machine.hosts.silent]
    members = [_watched(machine, member, at, awaited_for) for member in there if member.rank is not None]
    joiners = [_watched(machine, member, at) for member in _joiners(machine)]
    commands = _end_gone_joiners(machine, at, joiners)
    if _goes_on(watched for watched in members if watched.member in recovery.awaited):
        lateness.give_more_time(recovery, at)
    if machine.stage is Stage.FORMING:
        members = [_patiently(watched) for watched in members]
    found = in_recovery(policy, recovery.pace, members)
    if awaited_for >= _LOOK_EVERY and any(watched.sighting is None for watched in (*members, *joiners)):
        commands += _ask(machine, at)
    suspects = [*found.gone, *found.stuck, *found.late]
    ended, kept = _split(machine, at, (*found.gone, *found.stuck), suspects)
    late, kept_late = _split(machine, at, found.late, suspects, alive=True)
    if ended or late:
        return commands + _end(machine, at, [*ended, *late], "while the recovery waits for it")
    words = _words_on_recovery(machine, members, {**kept, **kept_late})
    return commands + (_remark(machine, at, words, awaited_for) if members else [])


def _needed_now(machine: "JobMachine") -> list[Member]:
    """Those whose answers are awaited; and while state is transferred, those who give it as well."""
    recovery, members = machine.recovery, machine.roster.members
    ids = {*recovery.awaited, *recovery.asked_for_checkpoints}
    if recovery.plan is not None and recovery.stage is Stage.FORMING:
        givers = {rank for _, ranks in recovery.plan.donors for rank in ranks}
        ids |= {machine.roster.holders[rank] for rank in givers if rank in machine.roster.holders}
        leavers, holders = machine.roster.leavers, machine.roster.holders
        ids |= {leaver for rank, leaver in leavers.items() if holders.get(rank) in recovery.awaited}
    return [members[id_] for id_ in sorted(ids) if id_ in members]


def _patiently(watched: Watched) -> Watched:
    """While groups are formed a main thread that is still elsewhere has the time that it has between steps; and whoever
    waits for the others there has the deadline of the whole (`lateness`)."""
    sighting = watched.sighting
    if sighting is None or sighting.condition not in (Condition.BUSY, Condition.WAITING):
        return watched
    condition = Condition.MOVING if sighting.condition is Condition.WAITING else Condition.BUSY
    calm = replace(sighting, condition=condition, unchanged=0.0, outside=True)
    return replace(watched, sighting=calm)


def _goes_on(members: Iterable[Watched]) -> bool:
    """Groups are formed and state is transferred: does anybody still move, or is somebody waited for who is alive?"""
    return any(watched.condition in (Condition.MOVING, Condition.BUSY, Condition.TRACED) for watched in members)


def _watched(machine: "JobMachine", member: Member, at: float, awaited_for: float | None = None) -> Watched:
    assert member.rank is not None
    sighting = machine.watchdog.sightings.of(member.id, at)
    heard_at = machine.watchdog.heard_at.get(member.id, at)
    return Watched(
        member=member.id,
        rank=member.rank,
        sighting=sighting,
        awaited_for=awaited_for,
        interrupted_for=at - heard_at,
    )


def _joiners(machine: "JobMachine") -> list[Member]:
    roster = machine.roster
    ids = {*machine.recovery.joining, *roster.understudies.values()}
    return [roster.members[id_] for id_ in sorted(ids) if id_ in roster.members]


def _end_gone_joiners(machine: "JobMachine", at: float, joiners: Iterable[Watched]) -> list[Command]:
    """They hold no state yet: another one can begin in their place."""
    gone = [watched for watched in joiners if _gone_while_joining(machine, watched.sighting)]
    return _end(machine, at, gone, "while it prepared") if gone else []


def _end_useless_spares(machine: "JobMachine", at: float) -> list[Command]:
    """A spare that stays stopped would not be there when it is needed."""
    roster = machine.roster
    useless = []
    for id_ in (*roster.parked, *roster.starting):
        sighting = machine.watchdog.sightings.of(id_, at)
        stopped = sighting is not None and sighting.condition is Condition.STOPPED
        if stopped and sighting is not None and sighting.seconds >= machine.policy.stall_floor:
            useless.append(roster.members[id_])
    return machine.recovery.kill(at, useless, "this spare stays stopped, and another one takes its place")


# -- ending somebody --------------------------------------------------------------------------------------------------


def _split(
    machine: "JobMachine", at: float, accused: Sequence[Watched], suspects: Sequence[Watched], alive: bool = False
) -> tuple[list[Watched], dict[MemberId, str]]:
    """Who of the accused can be done without, and why the others cannot."""
    ended: list[Watched] = []
    kept: dict[MemberId, str] = {}
    suspected = frozenset(watched.rank for watched in suspects)
    for watched in accused:
        why = _why_needed(machine, at, [*ended, watched], suspected, alive)
        if why is None:
            ended.append(watched)
        else:
            kept[watched.member] = why
    return ended, kept


def _why_needed(
    machine: "JobMachine", at: float, members: Sequence[Watched], suspected: frozenset[Rank], alive: bool
) -> str | None:
    """Why these cannot all be ended. `suspected`: nothing may be built on these ranks. `alive`: they may well come
    back, so they are given up for a spare that is warm, or when there will be none before they are ended."""
    recovery, pool = machine.recovery, machine.pool
    if not recovery.established:
        return None
    ranks = [watched.rank for watched in members if watched.rank not in recovery.absent]
    if not machine.policy.peer_memory:
        others = [rank for rank in _ranks_with_state(machine, at) if rank not in suspected]
        found = choose_donors(ranks, others, recovery.twin_keys, recovery.holdings)
        if isinstance(found, NoDonor):
            return f"nobody else holds the state of rank {found.rank}"
    left_to = {watched.rank for watched in members if watched.member in machine.roster.leavers.values()}
    wanted = len([rank for rank in ranks if rank not in left_to]) + len(recovery.vacancies())
    no_more = pool.is_empty_for_good(at)  # then whoever is ended makes room for a new process
    freed = [machine.roster.members[watched.member].host for watched in members] if no_more else []
    no_spare = pool.cannot_fill(wanted, at, freed)
    if alive:
        ready = pool.warm_spares(at) >= wanted or (no_more and no_spare is None)
        return None if ready else "no warm spare is there for it"
    if no_spare is None:
        return None
    no_way = cannot_degrade(machine, [*ranks, *recovery.vacancies()])
    if no_way is None:
        return None
    return f"there is no spare for it ({no_spare}), and the world cannot do without it ({no_way})"


def _ranks_with_state(machine: "JobMachine", at: float) -> list[Rank]:
    """Whose state can be built upon: not on that of somebody who is stopped, held or deaf right now, or whose host is
    silent, for it may have died with that."""
    sightings = machine.watchdog.sightings
    ranks = ((member, member.rank) for member in machine.recovery.present() if member.rank is not None)
    return [
        rank
        for member, rank in ranks
        if member.host not in machine.hosts.silent
        and _has_state(machine, member, rank)
        and not ((seen := sightings.of(member.id, at)) is not None and seen.condition in UNABLE_TO_GIVE)
    ]


def _has_state(machine: "JobMachine", member: Member, rank: Rank) -> bool:
    """A joiner has nothing before it has resumed, and whoever is behind may have begun to receive."""
    recovery = machine.recovery
    if machine.stage is Stage.TRAINING or (machine.stage is Stage.FORMING and member.id not in recovery.awaited):
        return True  # it has resumed; where it stood before that is past
    position, plan = recovery.positions.get(rank), recovery.plan
    if member.standing is not Standing.ACTIVE or (position is not None and position.holds is None):
        return False
    return plan is None or rank not in dict(plan.donors)


def _end(machine: "JobMachine", at: float, members: Iterable[Watched], why: str) -> list[Command]:
    commands: list[Command] = []
    for watched in members:
        seen = "" if watched.sighting is None else f"{watched.sighting}, "
        commands += machine.recovery.kill(at, [machine.roster.members[watched.member]], f"{seen}{why}")
    return commands


def _ask(machine: "JobMachine", at: float) -> list[Command]:
    """Nothing is concluded from what is too old or was never told."""
    watchdog = machine.watchdog
    if at < watchdog.asked_at + _LOOK_EVERY:
        return []
    watchdog.asked_at = at
    return [WatchClosely(generation=machine.generation)]


def no_progress(machine: "JobMachine", at: float, reason: str) -> list[Command] | None:
    """A generation is to be opened although nothing was lost: not for the fourth time at the same step."""
    step, count = machine.watchdog.barren
    if count < _BARREN:
        return None
    sightings = machine.watchdog.sightings
    doing = [f"rank {m.rank}: {sightings.last_words(m.id) or 'not seen'}" for m in machine.recovery.present()[:16]]
    text = (
        f"no progress: the world has resumed at step {step} {count} times without a new fault, and stands still again. "
        f"{reason}. What the ranks were doing: {'; '.join(doing)}"
    )
    return machine.stop(at, Outcome.FAILED, text, 1)


# -- words ------------------------------------------------------------------------------------------------------------


def _oldest(members: Iterable[Watched]) -> float:
    return max((watched.sighting.seconds for watched in members if watched.sighting is not None), default=0.0)


def _remark(machine: "JobMachine", at: float, text: str, silent_for: float) -> list[Command]:
    """Once, and again at growing intervals, for as long as the silence lasts."""
    watchdog = machine.watchdog
    first = machine.policy.stall_deadline(machine.recovery.pace)
    if silent_for < first or (watchdog.remark_at is not None and at < watchdog.remark_at):
        return []
    watchdog.remark_gap = min(_LONGEST_GAP, 2 * watchdog.remark_gap or 2 * first)
    watchdog.remark_at = at + watchdog.remark_gap
    return [machine.decision(at, DecisionKind.WAIT, text)]


def _words_on_training(machine: "JobMachine", members: Sequence[Watched], kept: dict[MemberId, str]) -> str:
    waiting = [watched.rank for watched in members if watched.condition is Condition.WAITING]
    holding_up = [w for w in members if w.condition not in (None, Condition.WAITING, Condition.MOVING)]
    if not holding_up:
        return f"{named(waiting)} wait for others"
    if not waiting:
        return f"no rank makes progress, and none is ended for that: {_in_groups(holding_up)}"
    told = "; ".join(_told(machine, watched, kept) for watched in holding_up[:8])
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{named(waiting)} {verb} for {named([watched.rank for watched in holding_up])}: {told}"


def _in_groups(members: Sequence[Watched]) -> str:
    """Ranks that do the same thing together."""
    groups: dict[str, list[Rank]] = {}
    for watched in members:
        groups.setdefault(str(watched.sighting), []).append(watched.rank)
    return "; ".join(f"{named(ranks)}: {what}" for what, ranks in list(groups.items())[:8])


def _told(machine: "JobMachine", watched: Watched, kept: dict[MemberId, str]) -> str:
    sighting = watched.sighting
    assert sighting is not None
    if watched.member in kept:
        return f"{watched}; it is waited for, because {kept[watched.member]}"
    if sighting.condition is not Condition.BUSY:
        return str(watched)
    flag = "--idle-timeout" if sighting.outside else "--busy-timeout"
    limit = busy_limit(machine.policy, machine.recovery.pace, sighting)
    return f"{watched}; it answers, and is waited for ({flag} {limit:g} s)"


def _words_on_setup(machine: "JobMachine", members: Sequence[Watched], lasted: float) -> str:
    unseen = [w.rank for w in members if not machine.roster.members[w.member].connected]
    seen = [watched for watched in members if watched.sighting is not None and watched.rank not in unseen]
    told = [f"{named(unseen)} not yet at understudy.join()"] if unseen else []
    told += [_in_groups(seen)] if seen else []
    return f"no first step after {lasted:.0f} s (limit {machine.policy.setup_timeout:g} s, --setup-timeout): " + (
        "; ".join(told) or "nothing is known of the ranks yet"
    )


def _words_on_recovery(machine: "JobMachine", members: Sequence[Watched], kept: dict[MemberId, str]) -> str:
    seen = [watched for watched in members if watched.sighting is not None]
    told = "; ".join(_told(machine, watched, kept) for watched in seen[:8])
    ranks = named([watched.rank for watched in members])
    return f"the recovery waits for {ranks}: {told or 'nothing is known of them'}"
