"""What people, monitors and detectors may ask for. A request is evidence and a wish: the protocol decides."""

from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol.events import Event


class Request(Event, frozen=True, kw_only=True):
    """`reason` is for the ledger and for people: where the request comes from, and why."""

    reason: str


class MoveRanks(Request, frozen=True, kw_only=True):
    """Move these ranks to spares at a step boundary, while training goes on until then."""

    ranks: tuple[Rank, ...]


class DrainHost(Request, frozen=True, kw_only=True):
    """Move every rank away from this host, and put nothing there any more."""

    host: HostId


class UndrainHost(Request, frozen=True, kw_only=True):
    """Put ranks on this host again: its drain is called off, and nothing is held against it any more (that it was lost,
    that spares died there)."""

    host: HostId


class ReplaceRank(Request, frozen=True, kw_only=True):
    """Do not wait: end the process that holds this rank, and let a spare take over. `member`: only if it is still this
    one that holds it."""

    rank: Rank
    member: MemberId | None = None


class AbortGeneration(Request, frozen=True, kw_only=True):
    """Every rank leaves the generation now and says where it stands. A rank that does not is replaced."""


class KeepSpares(Request, frozen=True, kw_only=True):
    """Keep so many spares ready on this host from now on."""

    host: HostId
    spares: int
