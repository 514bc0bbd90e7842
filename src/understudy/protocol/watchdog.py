"""What is done about members that make no progress: waited for, replaced, or freed; always with evidence.

The rules for each condition are in `liveness`. Here they meet the rest of the job. A member is ended only if it is
stopped or deaf while others wait for it, or has been busy for too long while all others wait for it; and only if the
job can go on without it: its state is held elsewhere, and a replacement can take over its rank or the world can do
without it. Every other member is waited for, and that is said: once, and again at growing intervals.

When the evidence is too old to act upon, agents are asked to look closely (`WatchClosely`). Called only by `job`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from understudy.foundation.exits import NO_RENDEZVOUS
from understudy.foundation.ids import MemberId, Rank, StepNumber
from understudy.protocol import deadlines
from understudy.protocol import events as ev
from understudy.protocol.commands import Command, DecisionKind, Outcome, WatchClosely
from understudy.protocol.context import Context
from understudy.protocol.donors import NoDonor, choose_donors
from understudy.protocol.ending import EndingState
from understudy.protocol.fallback import Fallback
from understudy.protocol.hosts import Hosts
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
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage
from understudy.protocol.succession import FORGOTTEN

_LOOK_EVERY = 1.0  # seconds between two judgements while a member makes no progress
_GATHER = 0.2  # seconds between two judgements while many hosts tell what they see: each costs a look at all ranks
_LONGEST_GAP = 600.0  # seconds between two remarks about the same silence
_FIRST_REMARK_ON_SETUP = 60.0  # seconds
_MOST_PATIENCE = 16
_PATIENT_FOR = 600.0  # seconds for which a false alarm makes the deadline longer
_CONTACT_GRACE = 2.0  # seconds in which the loss that explains a broken connection is usually heard of
_BARREN = 3  # recoveries at one step without a new fault


@dataclass(slots=True)
class WatchdogState:
    """`look_at`: when to judge next. `barren`: how often the world has resumed at the same step without a new fault."""

    sightings: Sightings = field(default_factory=Sightings, metadata=FORGOTTEN)
    look_at: float | None = field(default=None, metadata=FORGOTTEN)
    judged_at: float = field(default=float("-inf"), metadata=FORGOTTEN)
    trouble: bool = field(default=False, metadata=FORGOTTEN)  # a member made no progress when last seen
    asked_at: float = field(default=float("-inf"), metadata=FORGOTTEN)
    remark_at: float | None = field(default=None, metadata=FORGOTTEN)
    remark_gap: float = field(default=0.0, metadata=FORGOTTEN)
    patience: int = field(default=1, metadata=FORGOTTEN)
    patient_until: float = field(default=float("-inf"), metadata=FORGOTTEN)
    contact_lost: tuple[float, Reason] | None = field(default=None, metadata=FORGOTTEN)  # when and what was first told
    barren: tuple[StepNumber | None, int] = (None, 0)
    heard_at: dict[MemberId, float] = field(default_factory=dict, metadata=FORGOTTEN)  # members know this generation
    traced_at: float = field(default=float("-inf"), metadata=FORGOTTEN)  # a debugger held a member in its setup

    def new_generation(self, at: float, at_once: bool = True) -> None:
        """Whatever was told of the old one says nothing any more, but a member that was busy still is. One that is
        left at a boundary is still used: a member without contact never comes to the boundary."""
        if at_once:
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


class Watchdog:
    """Looks at every member whose progress matters, and acts on what is certain."""

    def __init__(
        self,
        policy: Policy,
        hosts: Hosts,
        roster: Roster,
        pool: SparePool,
        round_: Round,
        fallback: Fallback,
        ending: EndingState,
        state: WatchdogState,
        context: Context,
    ) -> None:
        self.policy, self.hosts, self.roster, self.pool = policy, hosts, roster, pool
        self.round, self.fallback, self.ending, self.state, self.context = round_, fallback, ending, state, context

    # -- what agents and members tell ----------------------------------------------------------------------------------

    def on_sightings(self, event: ev.ActivityObserved) -> list[Command]:
        known = [sighting for sighting in event.sightings if sighting.member in self.roster.members]
        watchdog = self.state
        watchdog.sightings.take(event.at, known)
        for sighting in known:
            if sighting.heard >= self.round.state.generation:
                watchdog.heard_at.setdefault(sighting.member, event.at)
        if event.host in self.hosts.by_id:
            self.hosts.by_id[event.host].spoke_at = event.at
        next_at = watchdog.judged_at + (_GATHER if len(self.hosts.by_id) > 1 else 0.0)
        if event.at >= next_at:
            return self.judge(event.at)
        watchdog.look_at = next_at if watchdog.look_at is None else min(watchdog.look_at, next_at)
        return []

    def on_contact_lost(self, event: ev.ContactLost, member: Member) -> list[Command]:
        """Its connections broke and no loss is known. Mostly the news of the loss is on its way. A spare has no
        connections that could break."""
        if member.rank is None or self.ending.released or self.state.contact_lost is not None:
            return []
        if event.generation == self._generation_in_use():
            lost = because(Code.LOST_CONTACT, rank=member.rank, member=member.id, text=event.why)
            self.state.contact_lost = event.at, lost
        return []

    def _generation_in_use(self) -> int | None:
        """In which members compute now; None while a world is formed again."""
        match self.round.state.stage:
            case Stage.TRAINING | Stage.FOUNDING:
                return self.round.state.generation
            case Stage.STOPPING if self.round.state.boundary is not None:
                return self.round.state.generation - 1
        return None

    def on_tick(self, at: float) -> list[Command]:
        watchdog = self.state
        if self._generation_in_use() is None:
            watchdog.contact_lost = None  # it has reported after all
        lost = watchdog.contact_lost
        if lost is not None and at >= lost[0] + _CONTACT_GRACE:
            watchdog.contact_lost = (at, lost[1]) if self.hosts.silent else None  # that host comes back or is lost
            if not self.hosts.silent:
                return self.context.open(at, because(Code.NO_LOSS_KNOWN, cause=lost[1]), DecisionKind.ALARM)
        if watchdog.look_at is not None and at >= watchdog.look_at:
            return self.judge(at)
        return []

    # -- judging -------------------------------------------------------------------------------------------------------

    def judge(self, at: float) -> list[Command]:
        """Look at every member whose progress matters now, and act on what is certain."""
        self.state.look_at, self.state.judged_at = None, at
        if self.ending.released:
            return []
        commands = self._end_useless_spares(at)
        match self.round.state.stage:
            case Stage.TRAINING:
                return commands + self._judge_training(at)
            case Stage.FOUNDING:
                return commands + self._judge_founding(at)
            case Stage.STOPPING | Stage.FORMING:
                return commands + self._judge_recovery(at)
        return commands

    def _judge_training(self, at: float) -> list[Command]:
        watchdog, round_ = self.state, self.round.state
        members = [self._watched(member, at) for member in self.round.present()]
        still = [watched for watched in members if watched.condition not in (None, Condition.MOVING)]
        if not still and watchdog.trouble and any(watched.sighting is None for watched in members):
            watchdog.look_at = at + _LOOK_EVERY
            return self._ask(at)
        watchdog.trouble = bool(still)
        if not still:
            watchdog.all_is_well()
            return []
        watchdog.look_at = at + _LOOK_EVERY
        if at >= watchdog.patient_until:
            watchdog.patience = 1
        found = in_training(self.policy, round_.pace, members, watchdog.patience)
        if found.unseen:
            return self._ask(at) if found.gone or found.late or found.deadlock is not None else []
        ended, kept = self._split(at, found.gone, [*found.gone, *found.late])
        if ended:
            return self._end(at, ended, because(Code.OTHERS_WAIT))
        late, kept_late = self._split(at, found.late, [*found.gone, *found.late], alive=True)
        if late:
            reason = because(Code.LATE, seen=tuple(watched.reason for watched in late))
            return self.context.open(at, reason, DecisionKind.ALARM)
        if found.deadlock is not None:
            return self._on_deadlock(at, found.deadlock, members)
        watchdog.look_at = at + self._until_next(at, members)
        if not self._remark_is_due(at, _oldest(still)):
            return []
        return self._remark(at, self._why_training_waits(members, {**kept, **kept_late}))

    def _until_next(self, at: float, members: Sequence[Watched]) -> float:
        """Seconds until something may have to be done: not more often than needed, since thousands may be asked."""
        policy, pace = self.policy, self.round.state.pace
        if not any(watched.condition is Condition.WAITING for watched in members):
            remark_at = self.state.remark_at
            return max(_LOOK_EVERY, (remark_at if remark_at is not None else at + policy.stall_floor) - at)
        left = [policy.stall_deadline(pace)]
        for watched in members:
            match watched.sighting:
                case Sighting(condition=Condition.STOPPED | Condition.DEAF, seconds=seconds):
                    left.append(policy.unresponsive_timeout - seconds)
                case Sighting(condition=Condition.BUSY, seconds=seconds) as sighting:
                    left.append(busy_limit(policy, pace, sighting) - seconds)
        return min(max(_LOOK_EVERY, min(left)), 10 * _LOOK_EVERY)

    def _on_deadlock(self, at: float, seconds: float, members: Sequence[Watched]) -> list[Command]:
        """No member is ended: whatever they wait for, to form the groups again frees them."""
        watchdog = self.state
        reason = because(Code.DEADLOCK, seconds=seconds, seen=_in_groups(members))
        watchdog.patience = min(2 * watchdog.patience, _MOST_PATIENCE)
        watchdog.patient_until = at + _PATIENT_FOR
        return self.context.open(at, reason, DecisionKind.ALARM)

    def _judge_founding(self, at: float) -> list[Command]:
        """A setup may take long, and to begin again costs all of it: no member is ended as quickly as in training."""
        watchdog, policy, round_ = self.state, self.policy, self.round.state
        if self.round.state.generation == 0:
            return self._judge_gathering(at)
        members = [self._watched(member, at) for member in self.roster.seated()]
        gone = [watched for watched in members if self._gone_in_setup(watched.sighting)]
        if gone:
            return self._end(at, gone, because(Code.IN_SETUP))
        lasted = at - round_.opened_at
        if self._counted_of_setup(at, members) >= policy.setup_timeout:
            slow = [watched for watched in members if watched.condition is not Condition.WAITING] or members
            return self._end(at, slow, because(Code.SETUP_TIMEOUT, limit=policy.setup_timeout))
        watchdog.look_at = at + (_LOOK_EVERY if any(w.condition in UNRESPONSIVE for w in members) else 10.0)
        if lasted < _FIRST_REMARK_ON_SETUP:
            return []
        asked = self._ask(at) if any(watched.sighting is None for watched in members) else []
        due = self._remark_is_due(at, lasted)
        return asked + (self._remark(at, self._why_setup_lasts(members, lasted)) if due else [])

    def _counted_of_setup(self, at: float, members: Iterable[Watched]) -> float:
        """Seconds since it began, or since a debugger held one of its members for the last time: a person at a
        debugger takes the time that it takes, and the other ranks wait for that member."""
        if any(watched.condition is Condition.TRACED for watched in members):
            self.state.traced_at = at
        return at - max(self.round.state.opened_at, self.state.traced_at)

    def _judge_gathering(self, at: float) -> list[Command]:
        """The world is founded when enough hosts are there. Until then nothing is lost by giving up; machines are
        held."""
        watchdog, policy = self.state, self.policy
        since = self.round.state.opened_at
        there = [host.id for host in self.hosts.present() if host.ranks]
        names = (*there[:8], "...") if len(there) > 8 else tuple(there)
        present = because(Code.HOSTS_PRESENT, count=len(there), wanted=policy.hosts, hosts=names)
        if at - since >= policy.setup_timeout:
            why = because(Code.HOSTS_MISSING, limit=policy.setup_timeout, present=present)
            return self.context.stop(at, Outcome.FAILED, why, NO_RENDEZVOUS)
        watchdog.look_at = min(at + 10.0, since + policy.setup_timeout)
        lasted = at - since
        due = lasted >= _FIRST_REMARK_ON_SETUP and self._remark_is_due(at, lasted)
        return self._remark(at, because(Code.WAITING_FOR_HOSTS, present=present)) if due else []

    def _gone_in_setup(self, sighting: Sighting | None) -> bool:
        """A member that is stopped or deaf in its setup has the time of a busy one."""
        return is_gone(self.policy, sighting) and sighting is not None and sighting.seconds >= self.policy.busy_timeout

    def _gone_while_joining(self, sighting: Sighting | None) -> bool:
        """The world waits for it. But in a setup libraries hold the interpreter lock for long."""
        stopped = sighting is not None and sighting.condition is Condition.STOPPED
        return is_gone(self.policy, sighting) and (stopped or self._gone_in_setup(sighting))

    def _judge_recovery(self, at: float) -> list[Command]:
        watchdog, round_, policy = self.state, self.round.state, self.policy
        watchdog.look_at = at + _LOOK_EVERY
        awaited_for = at - round_.opened_at
        there = [member for member in self._needed_now() if member.host not in self.hosts.silent]
        members = [self._watched(member, at, awaited_for) for member in there if member.rank is not None]
        joiners = [self._watched(member, at) for member in self._joiners()]
        commands = self._end_gone_joiners(at, joiners)
        if _goes_on(watched for watched in members if watched.member in round_.awaited):
            deadlines.give_more_time(self.round, at)
        if self.round.state.stage is Stage.FORMING:
            members = [_patiently(watched) for watched in members]
        found = in_recovery(policy, round_.pace, members)
        if awaited_for >= _LOOK_EVERY and any(watched.sighting is None for watched in (*members, *joiners)):
            commands += self._ask(at)
        suspects = [*found.gone, *found.stuck, *found.late]
        ended, kept = self._split(at, (*found.gone, *found.stuck), suspects)
        late, kept_late = self._split(at, found.late, suspects, alive=True)
        if ended or late:
            return commands + self._end(at, [*ended, *late], because(Code.RECOVERY_WAITS))
        if members and self._remark_is_due(at, awaited_for):
            commands += self._remark(at, self._why_recovery_waits(members, {**kept, **kept_late}))
        return commands

    def _needed_now(self) -> list[Member]:
        """Members whose answers are awaited; and while state is transferred, donors and leavers as well."""
        round_, members = self.round.state, self.roster.members
        ids = {*round_.awaited, *round_.asked_for_checkpoints}
        if round_.plan is not None and round_.stage is Stage.FORMING:
            givers = {rank for _, ranks in round_.plan.donors for rank in ranks}
            ids |= {self.roster.holders[rank] for rank in givers if rank in self.roster.holders}
            leavers, holders = self.roster.leavers, self.roster.holders
            ids |= {leaver for rank, leaver in leavers.items() if holders.get(rank) in round_.awaited}
        return [members[id_] for id_ in sorted(ids) if id_ in members]

    def _watched(self, member: Member, at: float, awaited_for: float | None = None) -> Watched:
        assert member.rank is not None
        sighting = self.state.sightings.of(member.id, at)
        heard_at = self.state.heard_at.get(member.id, at)
        return Watched(
            member=member.id,
            rank=member.rank,
            sighting=sighting,
            awaited_for=awaited_for,
            interrupted_for=at - heard_at,
        )

    def _joiners(self) -> list[Member]:
        roster = self.roster
        ids = {*self.round.state.joining, *roster.understudies.values()}
        return [roster.members[id_] for id_ in sorted(ids) if id_ in roster.members]

    def _end_gone_joiners(self, at: float, joiners: Iterable[Watched]) -> list[Command]:
        """They hold no state yet: another one can begin in their place."""
        gone = [watched for watched in joiners if self._gone_while_joining(watched.sighting)]
        return self._end(at, gone, because(Code.WHILE_PREPARING)) if gone else []

    def _end_useless_spares(self, at: float) -> list[Command]:
        """A spare that stays stopped would not be there when it is needed."""
        roster = self.roster
        useless = []
        for id_ in (*roster.parked, *roster.starting):
            sighting = self.state.sightings.of(id_, at)
            stopped = sighting is not None and sighting.condition is Condition.STOPPED
            if stopped and sighting is not None and sighting.seconds >= self.policy.stall_floor:
                useless.append(roster.members[id_])
        return self.round.kill(at, useless, because(Code.SPARE_STOPPED)) if useless else []

    # -- ending members ------------------------------------------------------------------------------------------------

    def _split(
        self, at: float, accused: Sequence[Watched], suspects: Sequence[Watched], alive: bool = False
    ) -> tuple[list[Watched], dict[MemberId, Reason]]:
        """Which of the accused members can be done without, and why the others cannot."""
        ended: list[Watched] = []
        kept: dict[MemberId, Reason] = {}
        suspected = frozenset(watched.rank for watched in suspects)
        for watched in accused:
            why = self._why_needed(at, [*ended, watched], suspected, alive)
            if why is None:
                ended.append(watched)
            else:
                kept[watched.member] = why
        return ended, kept

    def _why_needed(
        self, at: float, members: Sequence[Watched], suspected: frozenset[Rank], alive: bool
    ) -> Reason | None:
        """Why these cannot all be ended. `suspected`: nothing may be built on these ranks. `alive`: they may well come
        back, so they are given up for a spare that is warm, or when there will be none before they are ended."""
        round_, pool = self.round.state, self.pool
        if not round_.established:
            return None
        ranks = [watched.rank for watched in members if watched.rank not in round_.absent]
        if not self.policy.peer_memory:
            others = [rank for rank in self._ranks_with_state(at) if rank not in suspected]
            found = choose_donors(ranks, others, round_.twin_keys, round_.holdings)
            if isinstance(found, NoDonor):
                return because(Code.ONLY_HOLDER, rank=found.rank)
        left_to = {watched.rank for watched in members if watched.member in self.roster.leavers.values()}
        wanted = len([rank for rank in ranks if rank not in left_to]) + len(self.round.vacancies())
        homes = [self.roster.members[watched.member].host for watched in members]
        no_more = pool.is_empty_for_good(at)
        # A rank that is ended leaves its place to a spare; room for a new process counts only where no spare will come.
        no_spare = pool.cannot_fill(wanted, at, homes if no_more or pool.has_spares(wanted, at, homes) else [])
        if alive:
            ready = pool.warm_spares(at) >= wanted or (no_more and no_spare is None)
            return None if ready else because(Code.NO_WARM_SPARE)
        if no_spare is None:
            return None
        no_way = self.fallback.cannot_degrade([*ranks, *self.round.vacancies()])
        if no_way is None:
            return None
        return because(Code.INDISPENSABLE, spare=no_spare, world=no_way)

    def _ranks_with_state(self, at: float) -> list[Rank]:
        """Ranks on whose state others can build. A member that is stopped, held or deaf right now does not count, nor
        does one whose host is silent, for it may have died with that."""
        sightings = self.state.sightings
        ranks = ((member, member.rank) for member in self.round.present() if member.rank is not None)
        return [
            rank
            for member, rank in ranks
            if member.host not in self.hosts.silent
            and self._has_state(member, rank)
            and not ((seen := sightings.of(member.id, at)) is not None and seen.condition in UNABLE_TO_GIVE)
        ]

    def _has_state(self, member: Member, rank: Rank) -> bool:
        """A joiner has nothing before it has resumed, and a laggard may have begun to receive."""
        round_ = self.round.state
        if self.round.state.stage is Stage.TRAINING or (
            self.round.state.stage is Stage.FORMING and member.id not in round_.awaited
        ):
            return True  # it has resumed; where it stood before that is past
        position, plan = round_.positions.get(rank), round_.plan
        if member.standing is not Standing.ACTIVE or (position is not None and position.holds is None):
            return False
        return plan is None or rank not in dict(plan.donors)

    def _end(self, at: float, members: Iterable[Watched], why: Reason) -> list[Command]:
        commands: list[Command] = []
        for watched in members:
            seen = None if watched.sighting is None else watched.sighting.reason
            ended = because(Code.ENDED, seen=seen, why=why)
            commands += self.round.kill(at, [self.roster.members[watched.member]], ended)
        return commands

    def _ask(self, at: float) -> list[Command]:
        """Nothing is concluded from what is too old or was never told."""
        watchdog = self.state
        if at < watchdog.asked_at + _LOOK_EVERY:
            return []
        watchdog.asked_at = at
        return [WatchClosely(generation=self.round.state.generation)]

    def no_progress(self, at: float, reason: Reason) -> list[Command] | None:
        """A generation is to be opened although nothing was lost: not for the fourth time at the same step."""
        step, count = self.state.barren
        if count < _BARREN:
            return None
        sightings = self.state.sightings
        seen = tuple(
            because(Code.LAST_SEEN, rank=member.rank, seen=sightings.last_of(member.id))
            for member in self.round.present()[:16]
        )
        stands_still = because(Code.NO_PROGRESS, step=step, count=count, cause=reason, seen=seen)
        return self.context.stop(at, Outcome.FAILED, stands_still, 1)

    # -- remarks -------------------------------------------------------------------------------------------------------

    def _remark_is_due(self, at: float, silent_for: float) -> bool:
        """Once, and again at growing intervals, for as long as the silence lasts."""
        remark_at = self.state.remark_at
        first = self.policy.stall_deadline(self.round.state.pace)
        return silent_for >= first and (remark_at is None or at >= remark_at)

    def _remark(self, at: float, reason: Reason) -> list[Command]:
        watchdog, first = self.state, self.policy.stall_deadline(self.round.state.pace)
        watchdog.remark_gap = min(_LONGEST_GAP, 2 * watchdog.remark_gap or 2 * first)
        watchdog.remark_at = at + watchdog.remark_gap
        return [self.round.decision(at, DecisionKind.WAIT, reason)]

    def _why_training_waits(self, members: Sequence[Watched], kept: dict[MemberId, Reason]) -> Reason:
        waiting = tuple(watched.rank for watched in members if watched.condition is Condition.WAITING)
        holding_up = [w for w in members if w.condition not in (None, Condition.WAITING, Condition.MOVING)]
        if not holding_up:
            return because(Code.WAITS_FOR_OTHERS, ranks=waiting)
        if not waiting:
            return because(Code.NO_RANK_MOVES, seen=_in_groups(holding_up))
        others = tuple(watched.rank for watched in holding_up)
        seen = tuple(self._seen(watched, kept) for watched in holding_up[:8])
        return because(Code.WAITS_FOR, ranks=waiting, others=others, seen=seen)

    def _seen(self, watched: Watched, kept: dict[MemberId, Reason]) -> Reason:
        sighting = watched.sighting
        assert sighting is not None
        if watched.member in kept:
            return because(Code.KEPT, seen=watched.reason, why=kept[watched.member])
        if sighting.condition is not Condition.BUSY:
            return watched.reason
        flag = "--idle-timeout" if sighting.outside else "--busy-timeout"
        limit = busy_limit(self.policy, self.round.state.pace, sighting)
        return because(Code.ANSWERS, seen=watched.reason, flag=flag, limit=limit)

    def _why_setup_lasts(self, members: Sequence[Watched], lasted: float) -> Reason:
        unseen = tuple(w.rank for w in members if not self.roster.members[w.member].connected)
        seen = [watched for watched in members if watched.sighting is not None and watched.rank not in unseen]
        told = (because(Code.NOT_JOINED, ranks=unseen),) if unseen else ()
        limit = self.policy.setup_timeout
        return because(Code.NO_FIRST_STEP_YET, seconds=lasted, limit=limit, seen=(*told, *_in_groups(seen)))

    def _why_recovery_waits(self, members: Sequence[Watched], kept: dict[MemberId, Reason]) -> Reason:
        sighted = [watched for watched in members if watched.sighting is not None]
        seen = tuple(self._seen(watched, kept) for watched in sighted[:8])
        return because(Code.RECOVERY_WAITS_FOR, ranks=tuple(watched.rank for watched in members), seen=seen)


def _patiently(watched: Watched) -> Watched:
    """While groups are formed a main thread that is still elsewhere has the time that it has between steps; and a
    member that waits for the others there has the deadline of the whole (`deadlines`)."""
    sighting = watched.sighting
    if sighting is None or sighting.condition not in (Condition.BUSY, Condition.WAITING):
        return watched
    condition = Condition.MOVING if sighting.condition is Condition.WAITING else Condition.BUSY
    calm = replace(sighting, condition=condition, unchanged=0.0, outside=True)
    return replace(watched, sighting=calm)


def _goes_on(members: Iterable[Watched]) -> bool:
    """Does one of these members still move, or is one busy or held by a debugger, and so alive?"""
    return any(watched.condition in (Condition.MOVING, Condition.BUSY, Condition.TRACED) for watched in members)


def _oldest(members: Iterable[Watched]) -> float:
    return max((watched.sighting.seconds for watched in members if watched.sighting is not None), default=0.0)


def _in_groups(members: Sequence[Watched]) -> tuple[Reason, ...]:
    """Ranks that do the same thing together."""
    groups: dict[Reason, list[Rank]] = {}
    for watched in members:
        if watched.sighting is not None:
            groups.setdefault(watched.sighting.reason, []).append(watched.rank)
    return tuple(because(Code.RANKS_SEEN, ranks=tuple(ranks), seen=seen) for seen, ranks in list(groups.items())[:8])
