"""Which members are alive, which are only slow, and what may be concluded from it. Pure: sightings in, findings out.

Agents look at their members and tell what they see (`Sighting`). Silence alone proves nothing: a rank that compiles,
loads or saves for ten minutes is healthy. So five conditions are told apart, each with its own timeout:

    stopped    the kernel says so (SIGSTOP)                 gone after `unresponsive_timeout`, while others wait
    deaf       its control thread does not answer a ping    the same
    traced     a debugger holds it                          waited for, without an end
    busy       its control thread answers, its main         replaced after `busy_timeout` if all others wait for it;
               thread runs the script                       between steps after `idle_timeout`
    waiting    its main thread waits for other ranks        if all wait for each other, the groups are formed again

What is done about a finding (kill, wait, open a generation) is decided in `watchdog`, which also knows which other
ranks hold a member's state. Knows nothing of pages, pings or processes; the agent's side is `detection.liveness`.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from understudy.foundation.ids import Generation, MemberId, Rank
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, Reason, because

FRESH = 3.0
"""Seconds for which a sighting may be acted upon."""


class Condition(enum.Enum):
    MOVING = "moving"  # its progress page has changed just now
    STOPPED = "stopped"
    TRACED = "traced"
    DEAF = "deaf"
    BUSY = "busy"
    WAITING = "waiting"


UNRESPONSIVE = frozenset({Condition.STOPPED, Condition.DEAF})
UNABLE_TO_GIVE = UNRESPONSIVE | {Condition.TRACED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What an agent saw of one member. `seconds`: for how long it has been so. `unchanged`: of a busy one, for how long
    neither its stack nor its CPU time has changed. `outside`: it is not inside a step. `recovering`: it has left its
    step and waits for the coordinator's word. `where`: its main thread, in words for people."""

    member: MemberId
    condition: Condition
    seconds: float = 0.0
    unchanged: float = 0.0
    outside: bool = False
    recovering: bool = False
    where: str = ""
    heard: Generation = Generation(0)

    def later(self, seconds: float) -> "Sighting":
        """The same, so many seconds after it was told. A stop is not prolonged: that a process was stopped for a second
        is no evidence that it was for two, and to be wrong would end it. Its agent tells when it has been too long."""
        if self.condition is Condition.MOVING or self.condition in UNABLE_TO_GIVE:
            return self
        return Sighting(
            member=self.member,
            condition=self.condition,
            seconds=self.seconds + seconds,
            unchanged=self.unchanged + seconds if self.unchanged else 0.0,
            outside=self.outside,
            recovering=self.recovering,
            where=self.where,
            heard=self.heard,
        )

    @property
    def reason(self) -> Reason:
        """Times are rounded as they are shown, so that ranks that do the same have the same reason."""
        match self.condition:
            case Condition.STOPPED:
                return because(Code.SEEN_STOPPED, seconds=round(self.seconds, 1))
            case Condition.DEAF:
                return because(Code.SEEN_DEAF, seconds=round(self.seconds, 1))
            case Condition.TRACED:
                return because(Code.SEEN_TRACED)
            case Condition.BUSY if self.outside:
                return because(Code.SEEN_BUSY_OUTSIDE, seconds=round(self.seconds), where=self.where)
            case Condition.BUSY:
                return because(Code.SEEN_BUSY, seconds=round(self.seconds), where=self.where)
            case Condition.WAITING:
                return because(Code.SEEN_WAITING, seconds=round(self.seconds), where=self.where)
        return because(Code.SEEN_MOVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One member whose progress matters now. `sighting` is None when nothing fresh is known of it. `awaited_for`:
    seconds since its answer to a recovery is awaited; None: it is in training. `interrupted_for`: seconds since it is
    known to have heard of that recovery."""

    member: MemberId
    rank: Rank
    sighting: Sighting | None
    awaited_for: float | None = None
    interrupted_for: float = 0.0

    @property
    def condition(self) -> Condition | None:
        return None if self.sighting is None else self.sighting.condition

    @property
    def reason(self) -> Reason:
        seen = None if self.sighting is None else self.sighting.reason
        return because(Code.RANK_SEEN, rank=self.rank, member=self.member, seen=seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """`gone`: stopped or deaf for too long, while others need them. `late`: they answer, but have been busy for longer
    than they may while all others wait. `stuck`: they wait in a collective whose connections were broken long ago.
    `deadlock`: seconds for which all have waited for each other, if for too long.
    `unseen`: nothing fresh is known of these, so that nothing can be concluded."""

    gone: tuple[Watched, ...] = ()
    late: tuple[Watched, ...] = ()
    stuck: tuple[Watched, ...] = ()
    deadlock: float | None = None
    unseen: tuple[MemberId, ...] = ()


def busy_limit(policy: Policy, pace: float, sighting: Sighting) -> float:
    """How long a member may be busy while others wait for it. A step that takes long takes long."""
    if sighting.outside:
        return policy.idle_timeout
    limit = max(policy.busy_timeout, policy.stall_factor * pace)
    return limit / 2 if sighting.unchanged >= limit / 2 else limit


def is_gone(policy: Policy, sighting: Sighting | None) -> bool:
    return (
        sighting is not None and sighting.condition in UNRESPONSIVE and sighting.seconds >= policy.unresponsive_timeout
    )


def in_training(policy: Policy, pace: float, members: Sequence[Watched], patience: int = 1) -> Findings:
    """The world trains: which members keep the others waiting? `patience`: a factor of the deadlock's deadline."""
    seen = [watched for watched in members if watched.sighting is not None]
    unseen = tuple(watched.member for watched in members if watched.sighting is None)
    waiting = [watched for watched in seen if watched.condition is Condition.WAITING]
    gone = tuple(watched for watched in seen if is_gone(policy, watched.sighting)) if waiting else ()
    late = tuple(watched for watched in seen if _is_late(policy, pace, watched.sighting))
    if len(waiting) + len(gone) + len(late) < len(members) or not waiting:
        late = ()  # another member still moves, or may be what they wait for
    deadline = patience * policy.stall_deadline(pace)
    shortest = min((watched.sighting.seconds for watched in waiting if watched.sighting), default=0.0)
    deadlock = shortest if len(waiting) == len(members) and shortest >= deadline else None
    return Findings(gone=gone, late=late, deadlock=deadlock, unseen=unseen)


def in_recovery(policy: Policy, pace: float, members: Sequence[Watched]) -> Findings:
    """Answers of these are awaited. A member that waits in a collective although its connections were broken is stuck
    below Python; it has the deadline of a deadlock for it."""
    gone = tuple(watched for watched in members if is_gone(policy, watched.sighting))
    answered = [watched for watched in members if (watched.awaited_for or 0.0) >= policy.unresponsive_timeout]
    late = tuple(watched for watched in answered if _is_late(policy, pace, watched.sighting))
    stuck = tuple(watched for watched in members if _is_stuck(policy, pace, watched))
    unseen = tuple(watched.member for watched in members if watched.sighting is None)
    return Findings(gone=gone, late=late, stuck=stuck, unseen=unseen)


def _is_late(policy: Policy, pace: float, sighting: Sighting | None) -> bool:
    if sighting is None or sighting.condition is not Condition.BUSY:
        return False
    return sighting.seconds >= busy_limit(policy, pace, sighting)


def _is_stuck(policy: Policy, pace: float, watched: Watched) -> bool:
    sighting, deadline = watched.sighting, policy.stall_deadline(pace)
    if sighting is None or sighting.condition is not Condition.WAITING:
        return False
    if sighting.recovering:
        return False  # not stuck below Python: it waits for our word, and is asked again if its own was lost
    return watched.interrupted_for >= deadline and sighting.seconds >= deadline


@dataclass(slots=True)
class Sightings:
    """The last sighting of each member, and when it was told. Constant cost per sighting."""

    by_member: dict[MemberId, tuple[float, Sighting]] = field(default_factory=dict)

    def take(self, at: float, sightings: Iterable[Sighting]) -> None:
        for sighting in sightings:
            self.by_member[sighting.member] = at, sighting

    def of(self, member: MemberId, at: float) -> Sighting | None:
        """What is known of it now; None when that is too old."""
        told_at, sighting = self.by_member.get(member, (float("-inf"), None))
        if sighting is None or at - told_at > FRESH:
            return None
        return sighting.later(at - told_at)

    def last_of(self, member: MemberId) -> Reason | None:
        """Where it was when it was last seen, however long ago."""
        known = self.by_member.get(member)
        return None if known is None else known[1].reason

    def keep_only(self, members: Iterable[MemberId]) -> None:
        kept = set(members)
        self.by_member = {id_: seen for id_, seen in self.by_member.items() if id_ in kept}
