"""Which rank keeps copies of which rank's state: always one on another host, so that no host takes a rank and its
copies away.

Every rank computes this for itself, from where all ranks are; the coordinator uses it only to say what is covered.
"""

from collections.abc import Mapping, Sequence

from understudy.foundation.ids import HostId, Rank
from understudy.protocol.reasons import Code, Reason, because


def keeper_of(rank: Rank, hosts: Mapping[Rank, HostId]) -> Rank | None:
    """The next rank, after the last one the first again, that is on another host. None: all are on the same."""
    later = sorted(hosts, key=lambda other: (other < rank, other))
    return next((other for other in later if hosts[other] != hosts[rank]), None)


def pairs_of(rank: Rank, hosts: Mapping[Rank, HostId]) -> tuple[tuple[Rank, Rank], ...]:
    """Owner and keeper, wherever `rank` is one of them."""
    pairs = ((owner, keeper_of(owner, hosts)) for owner in sorted(hosts))
    return tuple((owner, keeper) for owner, keeper in pairs if keeper is not None and rank in (owner, keeper))


def cover(alone: Sequence[Rank], hosts: Mapping[Rank, HostId], every: int) -> Reason:
    """How ranks that have no twin are covered, and against the loss of what. `every`: steps between two copies."""
    if not every:
        return because(Code.NO_COVER)
    again = None if every == 1 else every - 1
    if all(rank in hosts and keeper_of(rank, hosts) is not None for rank in alone):
        return because(Code.COVERED, ranks=tuple(alone), every=every, again=again)
    return because(Code.COVERED_ON_OWN_HOST, ranks=tuple(alone), every=every, again=again)
