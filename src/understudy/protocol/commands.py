"""Everything that the protocol can ask for. Commands are carried out in order. A command has one description: it goes
to agents and members as it is (`ToAgent`, `ToMember`).

`RecordGeneration` must be durable before the next command is carried out, so that no process ever acts on
a generation that a coordinator could forget.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import structs

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.reasons import Reason
from understudy.protocol.rungs import Rung


class Command(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


class RecordGeneration(Command, frozen=True, kw_only=True):
    """Make this membership durable. A member that holds an `absent` rank is benched, or prepares for it."""

    generation: Generation
    founded_in: Generation
    holders: tuple[tuple[Rank, MemberId], ...]
    absent: tuple[Rank, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The rank that a process will have, as torchrun's variables tell it before `join()`. `store`: the host of the c10d
    store. The coordinator fills in where that store listens (`store_address`); empty: workers know it anyway."""

    rank: Rank
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    nodes: int = 1
    store: HostId = THIS_HOST
    store_address: str = ""


class StartMember(Command, frozen=True, kw_only=True):
    """Start a process. `seat` is for its log names and its environment; the rank itself comes with `AssignRank`.
    `device`: the number of the one that it has, of those that processes of its host see; None: not known here."""

    member: MemberId
    seat: Seat | None = None
    host: HostId = THIS_HOST
    device: int | None = None


class AssignRank(Command, frozen=True, kw_only=True):
    """Give a rank to a member. `founding`: the whole world is new, so nothing is rehearsed or received. `slot`: its
    place on its host. `device`: as in `StartMember`; a shadow may have another one now than it was started with.
    `store`: the host whose c10d store is used. The coordinator fills in where that store listens
    (`store_address`; empty: workers know it anyway) and what the rank's first holder left (`bequest`)."""

    member: MemberId
    rank: Rank
    slot: int
    store: HostId
    generation: Generation
    founded_in: Generation
    founding: bool
    world_size: int
    local_world_size: int
    store_address: str = ""
    bequest: bytes = b""
    device: int | None = None


class WatchClosely(Command, frozen=True, kw_only=True):
    """A member makes no progress, and what is known of the members is too old: let agents tell what they see. `hosts`:
    only these; none: all of them."""

    generation: Generation
    hosts: tuple[HostId, ...] = ()


class AskCheckpoints(Command, frozen=True, kw_only=True):
    """Nothing better is left: which durable checkpoints could each of these members load? Only asked then, because it
    means to look at files, which may take long."""

    generation: Generation
    members: tuple[MemberId, ...]


class AskStep(Command, frozen=True, kw_only=True):
    """A boundary is to be chosen: let the members say which step they have begun."""

    generation: Generation
    members: tuple[MemberId, ...]


class AbandonGeneration(Command, frozen=True, kw_only=True):
    """Tell the members to leave the old generation, whatever they are blocked in, and to report their positions.
    `boundary`: not now, but before they begin this step; a member that has begun it leaves now. `leavers` hand their
    ranks over, to `takers`: these make their connections while the others come to a stop."""

    generation: Generation
    members: tuple[MemberId, ...]
    reason: Reason
    boundary: StepNumber | None = None
    leavers: tuple[MemberId, ...] = ()
    takers: tuple[MemberId, ...] = ()


class KeepAgreed(Command, frozen=True, kw_only=True):
    """All twins had this state in common: keep the copy of it, and forget older ones."""

    generation: Generation
    members: tuple[MemberId, ...]
    step: StepNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Survivors wait in collectives between two steps (an evaluation). `done`: so many of them have been completed by
    the rank that is furthest (`donor`), which tells their results to the ranks that lack some (`lacking`, joiners
    among them); then all go on together with the next one. `begun`: False if the survivors apply the step together,
    and none has gone on since: a member that takes the state has it as it was right after the step."""

    done: int
    donor: Rank
    lacking: tuple[Rank, ...] = ()
    begun: bool = True


class ResumeAt(Command, frozen=True, kw_only=True):
    """The verdict: every member reaches state `step` (`commit.action_for`), regroups, and receivers are served.
    `rewind`: it is the state that was agreed on, and a member that does not receive it has kept it.
    `rung`: where it comes from for a member that neither holds nor receives it. When all processes are to begin anew,
    each member saves it and waits to be ended.
    `from_copies`: receivers whose donor does not hold their state but keeps a copy of it.
    `leavers` reach it as well and give it to the present holders of their ranks; a receiver that is its own donor
    takes it from its leaver.
    The coordinator fills in where the c10d store listens (`store_address`); empty: workers know it anyway."""

    generation: Generation
    step: StepNumber
    members: tuple[MemberId, ...]
    donors: tuple[tuple[Rank, tuple[Rank, ...]], ...]  # receiver -> holders of the same bytes, in turn
    store: HostId  # the host whose c10d store is used
    reason: Reason
    leavers: tuple[MemberId, ...] = ()
    rewind: bool = False
    rung: Rung = Rung.SWAP
    absent: tuple[Rank, ...] = ()  # the world goes on without these, at the same global batch
    from_copies: tuple[Rank, ...] = ()
    tail: Tail | None = None  # survivors communicate between two steps, and go on with that first
    distrust: bool = False  # what members hold counts for nothing, even if it is that state
    probation: int = 0  # steps for which members watch their state
    store_address: str = ""

    def receives(self, rank: Rank) -> bool:
        return any(receiver == rank for receiver, _ in self.donors)


class KillMember(Command, frozen=True, kw_only=True):
    """End a process now (SIGKILL). Its `MemberLost` follows."""

    member: MemberId
    reason: Reason
    hang: bool = False


class DismissStranger(Command, frozen=True, kw_only=True):
    """A process lives on a host and is no member (any more): its rank was given to another one. End it."""

    host: HostId
    member: MemberId
    reason: Reason


class ReleaseMembers(Command, frozen=True, kw_only=True):
    """Every rank has finished its steps: let the scripts go on to their end."""

    generation: Generation
    members: tuple[MemberId, ...]


class Outcome(enum.Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # by an operator


class StopJob(Command, frozen=True, kw_only=True):
    """End every process and the job."""

    outcome: Outcome
    reason: Reason
    exit_code: int


class DecisionKind(enum.Enum):
    START = "start"
    HOST = "host"  # a host joined, was lost, came back
    DEVICE = "device"  # which one a process has, or has no more
    WARN = "warn"  # nothing has happened yet
    PLAN = "plan"  # a rank is to move; training goes on
    MOVE = "move"  # at a boundary, from a process that lives
    NO_MOVE = "no move"
    SWAP = "swap"
    CORRUPT = "corrupt"  # twins differ
    REWIND = "rewind"  # to an earlier state: the last on which all twins agreed, or one that all have saved
    ALARM = "alarm"  # a generation was opened without a loss
    WAIT = "wait"  # a member makes no progress and is waited for
    VERDICT = "verdict"
    RESUMED = "resumed"
    START_OVER = "start over"
    CHECKPOINT = "checkpoint"  # the job began with what an earlier run had left on disk
    DEGRADE = "degrade"  # the world goes on without a replica
    STEP_DOWN = "step down"  # bad state on probation: the next rung
    RESTART = "restart"  # all processes begin anew, with the state of the old ones
    REFILL = "refill"
    NO_REFILL = "no refill"
    REFUSE = "refuse"
    KILL = "kill"
    FINISH = "finish"
    STOP = "stop"


class RecordDecision(Command, frozen=True, kw_only=True):
    """For the ledger and the terminal: what was decided and why."""

    at: float
    generation: Generation
    kind: DecisionKind
    reason: Reason
    rank: Rank | None = None
    member: MemberId | None = None
    step: StepNumber | None = None


ToMember = AssignRank | AskStep | AskCheckpoints | AbandonGeneration | KeepAgreed | ResumeAt | ReleaseMembers
"""What the processes of members are told. Each names its members."""

ToAgent = StartMember | WatchClosely | KillMember | DismissStranger | StopJob | ToMember
"""What agents are told: to act on their host, or to pass a command on to their members."""


def members_of(command: ToMember) -> tuple[MemberId, ...]:
    """All members that are to hear of it."""
    match command:
        case AssignRank(member=member):
            return (member,)
        case ResumeAt(members=members, leavers=leavers):
            return (*members, *leavers)
    return command.members


def addressed_to(command: ToMember, members: Sequence[MemberId]) -> ToMember:
    """The same command for these of its members only, at a cost that does not depend on the others."""
    match command:
        case AssignRank():
            return command
        case ResumeAt(leavers=leavers):
            staying = tuple(member for member in members if member not in leavers)
            leaving = tuple(member for member in members if member in leavers)
            return structs.replace(command, members=staying, leavers=leaving)
    return structs.replace(command, members=tuple(members))
