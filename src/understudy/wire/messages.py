"""What a worker and its agent say to each other over the Unix socket."""

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every message names its type; unknown types are refused by the decoder."""


# -- worker to agent --------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """The first message on a connection. The token must be the one that the agent gave to this member."""

    member: str
    token: str
    pid: int


class Parked(Message, frozen=True, kw_only=True):
    """A spare is warm and idle now."""


class Established(Message, frozen=True, kw_only=True):
    """`holdings`: a number for every unit of state that this rank holds; whoever has that number has the same bytes.
    `replica`: the ranks without which this one cannot compute; empty when the world cannot do without any.
    `began_at`: the first step of this world; more than 0 when a durable checkpoint was resumed.
    `bequest`: for whoever will replace this rank on another host; nobody between reads it."""

    generation: int
    twin_key: str
    holdings: tuple[int, ...]
    bequest: bytes = b""
    replica: tuple[int, ...] = ()
    began_at: int = 0


class AtStep(Message, frozen=True, kw_only=True):
    """The step that this member has begun, because it was asked (`WhichStep`)."""

    generation: int
    step: int


class StateDigest(Message, frozen=True, kw_only=True):
    """Of the state with so many steps in it, for twins to compare."""

    generation: int
    step: int
    digest: str
    copied: bool = True  # a copy of it was made


class BadState(Message, frozen=True, kw_only=True):
    """On probation after a recovery: the state with so many steps in it cannot be right. `certain`: or there is
    but a sign of it."""

    generation: int
    step: int
    why: str
    certain: bool = True


class PositionReport(Message, frozen=True, kw_only=True):
    """`holdings` are told again only where some rank has no twin. `kept`: the state on which all twins agreed, and of
    which this member has a copy. `saved`: states that it can bring back from peer memory. `keeps`: copies of other
    ranks' states in memory of this host, as rank and step. `provisional`: the control thread says so for a main thread
    that is between two steps. `tail`: collectives that it has completed since its last step; `in_tail`: it waits in
    one."""

    generation: int
    holds: int | None
    arrived: bool
    established: bool
    twin_key: str | None
    holdings: tuple[int, ...] = ()
    kept: int | None = None
    saved: tuple[int, ...] = ()
    keeps: tuple[tuple[int, int], ...] = ()
    provisional: bool = False
    tail: int = 0
    in_tail: bool = False


class Prepared(Message, frozen=True, kw_only=True):
    """`timings`: seconds per phase (warm, setup, rehearsal). `twin_key`: that of the rank's former holder. `saved`:
    states of the rank that were found in peer memory."""

    generation: int
    twin_key: str
    timings: dict[str, float]
    holdings: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    keeps: tuple[tuple[int, int], ...] = ()


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver tells of its transfer. `given`: bytes by donor's rank. `checked`: digests that were compared.
    `digest`: of everything. `distrusted`: donors whose bytes differed from those of the others."""

    receiver: int
    given: dict[int, int]
    seconds: float
    checked: int
    digest: str
    from_memory: bool
    distrusted: list[int]


class Resumed(Message, frozen=True, kw_only=True):
    """`timings`: seconds per phase (apply, regroup, transfer). `transfer` is None for who received nothing. `finite`:
    all parameters are, or nobody looked."""

    generation: int
    timings: dict[str, float]
    transfer: Transfer | None = None
    finite: bool = True


class RecoveryTrouble(Message, frozen=True, kw_only=True):
    """`unfit`: this joiner can never become the rank that it was given."""

    generation: int
    why: str
    unfit: bool = False


class Finished(Message, frozen=True, kw_only=True):
    generation: int


class ScriptFailed(Message, frozen=True, kw_only=True):
    """The script raised. `fingerprint` is equal when the same exception came from the same place. `repeats`: any other
    process would meet it too."""

    step: int | None
    summary: str
    fingerprint: str
    repeats: bool = False


class Note(Message, frozen=True, kw_only=True):
    """Something a person should read, such as state that was not protected."""

    text: str


class ContactLost(Message, frozen=True, kw_only=True):
    """The connections to other ranks broke, and this member has not heard why."""

    generation: int
    why: str


class CheckpointList(Message, frozen=True, kw_only=True):
    """The durable checkpoints that this member could load, because it was asked (`WhichCheckpoints`)."""

    generation: int
    steps: tuple[int, ...]


class ActivityReport(Message, frozen=True, kw_only=True):
    """What the main thread does, because it was asked (`AskActivity`). `waiting`: for other ranks. `stack`: equal when
    the stack is. `cpu`: seconds used so far by all threads and children. `control_thread`: which thread answers.
    `heard`: the newest generation that it knows of."""

    number: int
    waiting: bool
    where: str
    stack: int
    cpu: float
    control_thread: int
    heard: int = 0


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a thread."""

    file: str
    line: int
    function: str


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """`frames`: the innermost call first."""

    name: str
    frames: list[Frame]


class Stacks(Message, frozen=True, kw_only=True):
    """What every thread is doing, the main thread first. `in_gradient_wait`: its backward pass has computed, and waits
    for the gradients of others."""

    number: int
    threads: list[ThreadStack]
    in_gradient_wait: bool = False


FromWorker = (
    Hello
    | Parked
    | Established
    | AtStep
    | StateDigest
    | BadState
    | PositionReport
    | Prepared
    | Resumed
    | RecoveryTrouble
    | Finished
    | ScriptFailed
    | Note
    | ContactLost
    | CheckpointList
    | ActivityReport
    | Stacks
)

# -- agent to worker --------------------------------------------------------------------------------------------------


class Assign(Message, frozen=True, kw_only=True):
    """`store`: host:port of the c10d store; empty: the one in the settings. `bequest`: of the rank's first holder."""

    generation: int
    founded_in: int
    founding: bool
    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    store: str = ""
    bequest: bytes = b""


class WhichStep(Message, frozen=True, kw_only=True):
    generation: int


class Abandon(Message, frozen=True, kw_only=True):
    """`boundary`: not now, but before this step is begun. `leave`: this member hands its rank over. `take`: it takes
    over from one that leaves."""

    generation: int
    reason: str
    boundary: int | None = None
    leave: bool = False
    take: bool = False


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks wait in collectives between two steps. `donor` has completed most of them, `done`, and tells their results
    to ranks that are `lacking` some."""

    done: int
    donor: int
    lacking: tuple[int, ...] = ()


class Resume(Message, frozen=True, kw_only=True):
    """All reach state `step`; `donors` maps each receiving rank, in turn, to the ranks that hold the same bytes.
    A rank that is its own donor takes the state from whoever held it before; that one is told to `leave`.
    `rewind`: whoever receives nothing goes back to its copy of that state.
    `rung`: where it comes from for whoever neither holds nor receives it (`protocol.rungs`).
    `absent`: ranks that the world goes on without, at the same global batch.
    `from_copies`: receivers whose donor keeps a copy of their state; it does not hold that state itself.
    `distrust`: what anybody holds counts for nothing. `probation`: steps for which members watch their state.
    `store`: host:port of the c10d store; empty: the one in the settings."""

    generation: int
    step: int
    donors: dict[int, list[int]]
    reason: str
    store: str = ""
    leave: bool = False
    rewind: bool = False
    rung: str = "swap"
    absent: tuple[int, ...] = ()
    from_copies: tuple[int, ...] = ()
    distrust: bool = False
    probation: int = 0
    tail: Tail | None = None


class Agreed(Message, frozen=True, kw_only=True):
    """All twins had this state in common."""

    generation: int
    step: int


class Release(Message, frozen=True, kw_only=True):
    generation: int


class KeepWarm(Message, frozen=True, kw_only=True):
    """To an idle spare: have this much memory ready."""

    memory: int


class WhichCheckpoints(Message, frozen=True, kw_only=True):
    """Nothing better is left: which durable checkpoints could be loaded?"""

    generation: int


class AskActivity(Message, frozen=True, kw_only=True):
    """This member has made no progress: is it alive, and what does it do? `number` comes back with the answer."""

    number: int


class AskStacks(Message, frozen=True, kw_only=True):
    """The world is silent: what is each thread doing? `number` comes back with the answer."""

    number: int


FromAgent = (
    Assign | WhichStep | WhichCheckpoints | Abandon | Agreed | Resume | Release | KeepWarm | AskActivity | AskStacks
)

_encoder = msgspec.msgpack.Encoder()
_from_worker: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromWorker)
_from_agent: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromAgent)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_from_worker(data: bytes) -> FromWorker:
    return _from_worker.decode(data)  # type: ignore[no-any-return]


def decode_from_agent(data: bytes) -> FromAgent:
    return _from_agent.decode(data)  # type: ignore[no-any-return]
