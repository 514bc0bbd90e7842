"""Which rank gives state to which: found by comparing what members say they hold, never configured.

A twin holds the same bytes of everything. Where a rank has no live twin, several ranks that hold parts of it may do:
what counts is that every unit of its state is held by one of them.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from understudy.foundation.ids import Rank
from understudy.protocol.reasons import Code, Reason, because


@dataclass(frozen=True, slots=True)
class NoDonor:
    """A rank some of whose bytes no live rank holds."""

    rank: Rank
    reason: Reason


def choose_donors(
    receivers: Collection[Rank],
    givers: Collection[Rank],
    twin_keys: Mapping[Rank, str],
    holdings: Mapping[str, frozenset[int]],
    limit: int = 8,
) -> dict[Rank, tuple[Rank, ...]] | NoDonor:
    """For each receiver up to `limit` twins, spread so that no giver serves all; else as few others as hold it all."""
    givers_by_key: dict[str, list[Rank]] = defaultdict(list)
    for giver in sorted(givers):
        if giver in twin_keys:
            givers_by_key[twin_keys[giver]].append(giver)
    chosen: dict[Rank, tuple[Rank, ...]] = {}
    for turn, receiver in enumerate(sorted(receivers)):
        key = twin_keys.get(receiver)
        twins = givers_by_key.get(key, []) if key is not None else []
        if twins:
            start = turn % len(twins)
            chosen[receiver] = tuple((twins[start:] + twins[:start])[:limit])
            continue
        together = _cover(receiver, holdings.get(key or "", frozenset()), givers_by_key, holdings, turn)
        if isinstance(together, NoDonor):
            return together
        chosen[receiver] = together
    return chosen


def _cover(
    receiver: Rank,
    wanted: frozenset[int],
    givers_by_key: Mapping[str, list[Rank]],
    holdings: Mapping[str, frozenset[int]],
    turn: int,
) -> tuple[Rank, ...] | NoDonor:
    """Again and again the one that holds most of what is still missing."""
    missing = set(wanted)
    found: list[Rank] = []
    while missing:
        best = max(givers_by_key, key=lambda key: len(missing & holdings.get(key, frozenset())), default="")
        held = missing & holdings.get(best, frozenset())
        if not held:
            break
        missing -= held
        givers = givers_by_key[best]
        found.append(givers[turn % len(givers)])
    if not found or missing:
        return NoDonor(receiver, because(Code.NO_LIVE_TWIN, rank=receiver))
    return tuple(found)


def without_twin(twin_keys: Mapping[Rank, str], holdings: Mapping[str, frozenset[int]]) -> tuple[Rank, ...]:
    """Ranks whose loss no other could make good: some unit of theirs is held by no other rank."""
    holders: dict[int, int] = defaultdict(int)
    ranks_by_key: dict[str, list[Rank]] = defaultdict(list)
    for rank, key in twin_keys.items():
        ranks_by_key[key].append(rank)
    for key, ranks in ranks_by_key.items():
        for unit in holdings.get(key, frozenset()):
            holders[unit] += len(ranks)
    alone = [
        ranks[0]
        for key, ranks in ranks_by_key.items()
        if len(ranks) == 1 and (not holdings.get(key) or any(holders[unit] == 1 for unit in holdings[key]))
    ]
    return tuple(sorted(alone))
