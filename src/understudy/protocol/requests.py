"""What people, monitors and detectors may ask for. A request is evidence and a wish: the protocol decides."""

from dataclasses import dataclass

from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Event):
    """`reason` is for the ledger and for people: who asks, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRanks(Request):
    """Move these ranks to spares at a step boundary, while training goes on until then."""

    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainHost(Request):
    """Move every rank away from this host, and put nothing there any more."""

    host: HostId


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainHost(Request):
    """Put ranks on this host again: its drain is called off, and nothing is held against it any more (that it was lost,
    that spares died there)."""

    host: HostId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRank(Request):
    """Do not wait: end the process that holds this rank, and let a spare take over. `member`: only if it is still this
    one that holds it."""

    rank: Rank
    member: MemberId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortGeneration(Request):
    """Everybody leaves the generation now and says where it stands. Who does not is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSpares(Request):
    """Keep so many spares ready on this host from now on."""

    host: HostId
    spares: int
