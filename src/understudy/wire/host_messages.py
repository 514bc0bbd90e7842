"""Messages between the agents of hosts and their coordinator, over one stream per host.

An agent speaks first (`Attend`) and is welcomed or refused. Then it sends events (`Happened`), and gets commands
(`Order`), both as the protocol describes them. Every order carries the term of the coordinator that gave it; an agent
that has heard of a newer term refuses it. A line belongs to one job: its key is made of that job's token
(`message_auth`).
"""

import math
from typing import Annotated, Any, get_args

import msgspec

from understudy.errors import WireError
from understudy.foundation.printable import printable
from understudy.protocol import commands, requests
from understudy.protocol import events as ev
from understudy.protocol.liveness import Sighting
from understudy.wire.inventory import HostInventory
from understudy.wire.messages import Measured
from understudy.wire.versions import PROTOCOL, VERSION

_LONGEST_WHERE = 300  # letters
_FASTEST, _SLOWEST = 1e-6, 86_400.0  # seconds for a step; deadlines follow from it
LARGEST = 5 * 1024 * 1024  # bytes of one message; a worker says 4 MiB at most (`framing`)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[\w.:@/-]+$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Number = Annotated[int, msgspec.Meta(ge=0)]  # of a term or a generation
LARGEST_STEP = 2**53 - 1  # whatever reads it as a double gets the same number
StepCount = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_STEP)]
Reason = Annotated[str, msgspec.Meta(max_length=10_000)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fields that are not known here are ignored: a newer version may say more (`versions`)."""


class Unknown(_Message, frozen=True, kw_only=True):
    """A message of a kind that this version does not know. It is never sent."""

    kind: str


# -- agent to coordinator ----------------------------------------------------------------------------------------------


HostEvent = (
    ev.MemberConnected | ev.MemberLost | ev.ActivityObserved | ev.PaceLearnt | requests.DrainHost | ev.FromMember
)
"""What a host may tell; that it wants to be drained, of itself only. Which hosts join or are silent, and what stops the
job, is seen by the coordinator itself."""


class Happened(_Message, frozen=True, kw_only=True):
    """An event of the protocol. `ago`: seconds between the first sign of it and now, where one was seen."""

    event: HostEvent
    ago: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None


class Attend(_Message, frozen=True, kw_only=True):
    """`ranks` 0: a host for spares. `members`: every process of the job that lives here. `ends`: how others ended, for
    a coordinator that may not know. `term`: of the last coordinator that this agent obeyed. `settings`: of the job, as
    this host was started; all hosts must agree. `inventory`: what monitors call this host and its devices. `run`: of
    which it is part, once it was welcomed. `agent`: of this process alone; two hosts of one name are told apart by
    it, and no other host can know it."""

    job: Name
    host: Name
    ranks: Count
    spares: Count
    place: Count | None
    store: Annotated[str, msgspec.Meta(max_length=300)]  # host:port of the c10d store beside this agent
    term: Number
    members: Annotated[list[Name], msgspec.Meta(max_length=100_000)]
    ends: Annotated[list[Happened], msgspec.Meta(max_length=10_000)]
    settings: dict[str, Any]
    inventory: HostInventory | None = None
    run: Annotated[str, msgspec.Meta(max_length=100)] = ""
    agent: Annotated[str, msgspec.Meta(max_length=100)] = ""
    protocol: Number = 0
    version: Annotated[str, msgspec.Meta(max_length=100)] = ""


class Bequeathed(_Message, frozen=True, kw_only=True):
    """What a member leaves to its replacement. `rank` and `world` (the generation in which it was founded) say whose it
    is when that member is not known any more. `again`: it was told before, to another coordinator. `seal`: a
    coordinator's, if it was given here to be kept for another host; without it no host speaks for another host's rank.
    """

    member: Name
    content: bytes
    rank: Count | None = None
    world: Number = 0
    again: bool = False
    seal: Annotated[bytes, msgspec.Meta(max_length=64)] = b""


class Advanced(_Message, frozen=True, kw_only=True):
    """The smallest and the largest step that ranks of this host have committed; only to be shown. It names no host: a
    host speaks of itself."""

    smallest: StepCount
    largest: StepCount

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise ValueError(f"the smallest step is {self.smallest}, and the largest one {self.largest}")


class CertificateEnds(_Message, frozen=True, kw_only=True):
    """When the certificate of this host ends, as Unix time; only to be shown. It names no host, either. Told at the
    beginning of a line, and when it is renewed."""

    at: Annotated[int, msgspec.Meta(ge=0, le=100_000_000_000)]


class Farewell(_Message, frozen=True, kw_only=True):
    """The agent ends, by the wish of its operator; nothing of the job lives here any more."""

    reason: Reason


FromHost = Attend | Happened | Measured | Bequeathed | Advanced | CertificateEnds | Farewell

# -- coordinator to agent ----------------------------------------------------------------------------------------------


class Welcome(_Message, frozen=True, kw_only=True):
    """`run`: of which run of the job the host is part from now on."""

    term: int
    host: str
    world_size: int
    run: str = ""
    protocol: int = 0
    version: str = ""

    @staticmethod
    def now(term: int, host: str, world_size: int, run: str) -> "Welcome":
        """By this version."""
        return Welcome(term=term, host=host, world_size=world_size, run=run, protocol=PROTOCOL, version=VERSION)


class Refuse(_Message, frozen=True, kw_only=True):
    """`final`: there is no use in trying again."""

    reason: str
    final: bool = False
    leader: str = ""  # where to go instead, if that is known


class Order(_Message, frozen=True, kw_only=True):
    """A command of the protocol for this host and its members, of those that it names."""

    term: int
    command: commands.ToAgent


class Keep(_Message, frozen=True, kw_only=True):
    """Keep what a rank of another host left: that host and the coordinator may be lost together."""

    term: int
    kept: Bequeathed


ToHost = Welcome | Refuse | Order | Keep

_encoder = msgspec.msgpack.Encoder()
_from_host: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(FromHost)
_to_host: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(ToHost)

_KINDS = frozenset(kind.__name__ for kind in (*get_args(FromHost), *get_args(ToHost), Unknown))
_KINDS_INSIDE = frozenset(
    name
    for module, base in ((ev, ev.Event), (requests, ev.Event), (commands, commands.Command))
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, base)
)
"""Events and commands that this version knows, also those that the other side may not send: these are refused."""


def encode(message: FromHost | ToHost) -> bytes:
    return _encoder.encode(message)


def decode_from_host(data: bytes) -> FromHost | Unknown:
    return _decode(_from_host, data)  # type: ignore[no-any-return]


def decode_to_host(data: bytes) -> ToHost | Unknown:
    return _decode(_to_host, data)  # type: ignore[no-any-return]


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", data: bytes) -> Any:
    if len(data) > LARGEST:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {LARGEST}", kind="oversized")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        if (kind := _unknown_kind(data)) is not None:
            return Unknown(kind=kind)
        raise WireError(f"not a message: {error}") from error


class _Tagged(msgspec.Struct, frozen=True):
    type: Annotated[str, msgspec.Meta(min_length=1, max_length=50, pattern=r"^\w+$")]


class _Envelope(msgspec.Struct, frozen=True):
    event: _Tagged | None = None
    command: _Tagged | None = None


def _unknown_kind(data: bytes) -> str | None:
    """The name of a kind that this version does not know at all: of a message, or of the event or command inside."""
    try:
        if (kind := msgspec.msgpack.decode(data, type=_Tagged).type) not in _KINDS:
            return kind
        envelope = msgspec.msgpack.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, ValueError):
        return None
    inside = {Happened.__name__: envelope.event, Order.__name__: envelope.command}.get(kind)
    return None if inside is None or inside.type in _KINDS_INSIDE else inside.type


def from_event(event: ev.Event, ago: float | None = None) -> Happened:
    """Raises `WireError` if a host may not tell of it."""
    if not isinstance(event, HostEvent):
        raise WireError(f"a host may not tell of {type(event).__name__}")
    return Happened(event=event, ago=ago)


def to_event(happened: Happened, at: float) -> HostEvent:
    """With the receiver's own time: hosts do not share a clock. Texts go to terminals and ledgers: they have no control
    characters but the ends of lines."""
    event = msgspec.convert({**_clean(msgspec.to_builtins(happened.event)), "at": at}, type(happened.event))
    if isinstance(event, ev.ActivityObserved) and not all(map(_is_sound, event.sightings)):
        raise WireError("not a sighting: its times must be finite and its words short")
    if isinstance(event, ev.PaceLearnt) and event.pace != 0 and not _FASTEST <= event.pace <= _SLOWEST:
        raise WireError(f"not a pace: {event.pace}")
    return event


def _clean(told: Any) -> Any:
    match told:
        case str():
            return printable(told, keep="\n\t")
        case dict():
            return {key: _clean(value) for key, value in told.items()}
        case list() | tuple():
            return [_clean(value) for value in told]
    return told


def _is_sound(sighting: Sighting) -> bool:
    times = (sighting.seconds, sighting.unchanged)
    return all(math.isfinite(time) and time >= 0 for time in times) and len(sighting.where) <= _LONGEST_WHERE
