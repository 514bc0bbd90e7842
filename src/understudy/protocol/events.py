"""Everything that can happen to a job. An event has one description: a worker that has news builds the event, its agent
and the coordinator pass it on, and the machine takes it.

Each event carries the time at which it was seen, by the clock of the process that decides. A process that has another
clock sends the event with `at=UNTIMED`, and the receiver sets the time of arrival.
"""

import msgspec

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol.causes import Cause
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.liveness import Sighting
from understudy.protocol.positions import Position

UNTIMED = 0.0
"""The time of an event on its way to a process that has a clock of its own."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    at: float


class JobStarted(Event, frozen=True, kw_only=True):
    """The operator asked for the job on one host. With many, it starts when enough of them have joined. `devices`: as
    a host that joins tells it."""

    devices: int = 0


class HostJoined(Event, frozen=True, kw_only=True):
    """A host offers itself for the first time, or again after it was lost. `ranks` 0: only for spares. `store`: the
    address of its c10d store. `devices`: how many of them its processes see; 0: none, or it does not know."""

    host: HostId
    ranks: int
    spares: int
    place: int | None = None
    store: str = ""
    devices: int = 0


class HostSilent(Event, frozen=True, kw_only=True):
    """The connection to a host has ended. It may come back. `left`: its agent said that it ends, by the wish of its
    operator."""

    host: HostId
    why: str
    left: bool = False


class HostHeard(Event, frozen=True, kw_only=True):
    """A host is connected (again). `members`: every process of the job that lives there; the ends of others were told
    before."""

    host: HostId
    members: tuple[MemberId, ...]
    store: str = ""


class MemberConnected(Event, frozen=True, kw_only=True):
    """A process that we started has said hello: it can be told things now."""

    member: MemberId


class MemberParked(Event, frozen=True, kw_only=True):
    """A spare has imported everything heavy and waits without using the CPU."""

    member: MemberId


class MemberEstablished(Event, frozen=True, kw_only=True):
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


class MemberLost(Event, frozen=True, kw_only=True):
    """The process has ended. This is a fact, not a suspicion."""

    member: MemberId
    cause: Cause


class ActivityObserved(Event, frozen=True, kw_only=True):
    """What the agent of a host sees of its members, because one of them makes no progress or because it was asked."""

    sightings: tuple[Sighting, ...]
    host: HostId = THIS_HOST


class ContactLost(Event, frozen=True, kw_only=True):
    """A member's connections to the others broke, and it has not heard why."""

    member: MemberId
    generation: Generation
    why: str


class PaceLearnt(Event, frozen=True, kw_only=True):
    """Seconds that a step takes, from which deadlines follow."""

    pace: float


class StepTold(Event, frozen=True, kw_only=True):
    """The step that a member has begun, because it was asked."""

    member: MemberId
    generation: Generation
    step: StepNumber


class DigestTold(Event, frozen=True, kw_only=True):
    """Of a member's state with so many steps in it, for its twins to compare."""

    member: MemberId
    generation: Generation
    step: StepNumber
    digest: str
    copied: bool = True  # members have kept a copy of that state


class BadStateTold(Event, frozen=True, kw_only=True):
    """A member on probation has found its state, with so many steps in it, to be bad. `certain`: the state itself is;
    otherwise there is a sign of it, which may be the script's own affair."""

    member: MemberId
    generation: Generation
    step: StepNumber
    why: str
    certain: bool = True


class PositionReported(Event, frozen=True, kw_only=True):
    """A member has left the old generation behind and says where it stands. `provisional`: its control thread says so
    for a main thread that is between two steps, and has not come back from there yet."""

    member: MemberId
    generation: Generation
    position: Position
    provisional: bool = False
    twin_key: str | None = None
    holdings: tuple[int, ...] = ()


class CheckpointsTold(Event, frozen=True, kw_only=True):
    """The durable checkpoints that a member could load, by the number of steps in them."""

    member: MemberId
    generation: Generation
    steps: tuple[StepNumber, ...]


class MemberPrepared(Event, frozen=True, kw_only=True):
    """A joiner has run its setup and one step in a sandbox. `generation`: the one in which it got its rank. `saved`:
    states of that rank that it found in peer memory. `keeps`: as in `Position`."""

    member: MemberId
    generation: Generation
    twin_key: str
    holdings: tuple[int, ...] = ()
    saved: tuple[StepNumber, ...] = ()
    keeps: tuple[tuple[Rank, StepNumber], ...] = ()


class MemberResumed(Event, frozen=True, kw_only=True):
    """A member has regrouped, holds the right state and has gone back to its loop. `finite`: its parameters are, or it
    had no reason to look."""

    member: MemberId
    generation: Generation
    finite: bool = True


class RecoveryFailed(Event, frozen=True, kw_only=True):
    """A member could not regroup, or received state that does not match its digest. `unfit`: it is a joiner that can
    never be made equal to the rank that it replaces."""

    member: MemberId
    generation: Generation
    why: str
    unfit: bool = False


class MemberFinished(Event, frozen=True, kw_only=True):
    """A member has no more steps and asks to be released."""

    member: MemberId
    generation: Generation


class StopRequested(Event, frozen=True, kw_only=True):
    """An operator (or a signal) wants the job to end."""

    reason: str
    exit_code: int


class Tick(Event, frozen=True, kw_only=True):
    """Time has passed: deadlines are looked at."""


FromMember = (
    MemberParked
    | MemberEstablished
    | ContactLost
    | StepTold
    | DigestTold
    | BadStateTold
    | PositionReported
    | CheckpointsTold
    | MemberPrepared
    | MemberResumed
    | RecoveryFailed
    | MemberFinished
)
"""What a member's process tells, of itself only."""
