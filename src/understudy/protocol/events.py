"""Everything that can happen to a job. Each event carries the time at which it was seen."""

from dataclasses import dataclass

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol.causes import Cause
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.liveness import Sighting
from understudy.protocol.positions import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    """The operator asked for the job on one host. With many, it starts when enough of them have joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJoined(Event):
    """A host offers itself for the first time, or again after it was lost. `ranks` 0: only for spares. `store`: the
    address of its c10d store."""

    host: HostId
    ranks: int
    spares: int
    place: int | None = None
    store: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSilent(Event):
    """The connection to a host has ended. It may come back."""

    host: HostId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHeard(Event):
    """A host is connected (again). `members`: every process of the job that lives there; the ends of others were told
    before."""

    host: HostId
    members: tuple[MemberId, ...]
    store: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConnected(Event):
    """A process that we started has said hello: it can be told things now."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParked(Event):
    """A spare has imported everything heavy and waits without using the CPU."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEstablished(Event):
    """A founding member has its first step behind it; members with equal `twin_key` hold the same bytes of everything,
    members with a common number in `holdings` the same bytes of one unit. `replica`: the ranks without which it cannot
    compute; empty when the world cannot do without any. `began_at`: the first step of the world; more than 0 when a
    durable checkpoint was resumed."""

    member: MemberId
    generation: Generation
    twin_key: str
    holdings: tuple[int, ...] = ()
    replica: tuple[Rank, ...] = ()
    began_at: StepNumber = StepNumber(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost(Event):
    """The process has ended. This is a fact, not a suspicion."""

    member: MemberId
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityObserved(Event):
    """What the agent of a host sees of its members, because one of them makes no progress or because it was asked."""

    sightings: tuple[Sighting, ...]
    host: HostId = THIS_HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLost(Event):
    """A member's connections to the others broke, and it has not heard why."""

    member: MemberId
    generation: Generation
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceLearnt(Event):
    """Seconds that a step takes, from which deadlines follow."""

    pace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTold(Event):
    """The step that a member has begun, because it was asked."""

    member: MemberId
    generation: Generation
    step: StepNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestTold(Event):
    """Of a member's state with so many steps in it, for its twins to compare."""

    member: MemberId
    generation: Generation
    step: StepNumber
    digest: str
    copied: bool = True  # members have kept a copy of that state


@dataclass(frozen=True, slots=True, kw_only=True)
class BadStateTold(Event):
    """A member on probation has found its state, with so many steps in it, to be bad. `certain`: the state itself is;
    otherwise there is a sign of it, which may be the script's own affair."""

    member: MemberId
    generation: Generation
    step: StepNumber
    why: str
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionReported(Event):
    """A member has left the old generation behind and says where it stands. `provisional`: its control thread says so
    for a main thread that is between two steps, and has not come back from there yet."""

    member: MemberId
    generation: Generation
    position: Position
    provisional: bool = False
    twin_key: str | None = None
    holdings: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsTold(Event):
    """The durable checkpoints that a member could load, by the number of steps in them."""

    member: MemberId
    generation: Generation
    steps: tuple[StepNumber, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPrepared(Event):
    """A joiner has run its setup and one step in a sandbox. `generation`: the one in which it got its rank. `saved`:
    states of that rank that it found in peer memory. `keeps`: as in `Position`."""

    member: MemberId
    generation: Generation
    twin_key: str
    holdings: tuple[int, ...] = ()
    saved: tuple[StepNumber, ...] = ()
    keeps: tuple[tuple[Rank, StepNumber], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResumed(Event):
    """A member has regrouped, holds the right state and has gone back to its loop. `finite`: its parameters are, or it
    had no reason to look."""

    member: MemberId
    generation: Generation
    finite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed(Event):
    """A member could not regroup, or received state that does not match its digest. `unfit`: it is a joiner that can
    never be made equal to the rank that it replaces."""

    member: MemberId
    generation: Generation
    why: str
    unfit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFinished(Event):
    """A member has no more steps and asks to be released."""

    member: MemberId
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """An operator (or a signal) wants the job to end."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed: deadlines are looked at."""
