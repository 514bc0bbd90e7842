"""What a worker and its agent say to each other over the Unix socket.

Most of it is described by the protocol, and goes over the socket as it is: a worker tells events, and is told commands.
Here is what the machine never sees.
"""

from typing import Annotated, Any

import msgspec

from understudy.ledger.records import TransferRecord
from understudy.protocol.commands import Command, ToMember
from understudy.protocol.events import Event, FromMember


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every message names its type; unknown types are refused by the decoder."""


# -- worker to agent --------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """The first message on a connection. The token must be the one that the agent gave to this member."""

    member: str
    token: str
    pid: int


class BequestTold(Message, frozen=True, kw_only=True):
    """What this rank leaves to a replacement on another host. Only that replacement reads it. It is told before the
    rank is established."""

    content: bytes


class Measured(Message, frozen=True, kw_only=True):
    """What a member that resumes has measured; only for the ledger. `timings`: seconds per phase (regroup, transfer);
    empty for a member that only saved its state. `transfer`: None for a member that received nothing. It is told before
    `MemberResumed`."""

    generation: Annotated[int, msgspec.Meta(ge=0)]
    timings: dict[str, float]
    transfer: TransferRecord | None = None


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


FromWorker = Hello | BequestTold | Measured | ScriptFailed | Note | ActivityReport | Stacks | FromMember

# -- agent to worker --------------------------------------------------------------------------------------------------


class KeepWarm(Message, frozen=True, kw_only=True):
    """To an idle spare: have this much memory ready."""

    memory: int


class AskActivity(Message, frozen=True, kw_only=True):
    """This member has made no progress: is it alive, and what does it do? `number` comes back with the answer."""

    number: int


class AskStacks(Message, frozen=True, kw_only=True):
    """The world is silent: what is each thread doing? `number` comes back with the answer."""

    number: int


FromAgent = KeepWarm | AskActivity | AskStacks | ToMember

_encoder = msgspec.msgpack.Encoder()
_from_worker: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromWorker)
_from_agent: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromAgent)


def encode(message: Message | Event | Command) -> bytes:
    return _encoder.encode(message)


def decode_from_worker(data: bytes) -> FromWorker:
    return _from_worker.decode(data)  # type: ignore[no-any-return]


def decode_from_agent(data: bytes) -> FromAgent:
    return _from_agent.decode(data)  # type: ignore[no-any-return]
