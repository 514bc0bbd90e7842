"""Who gives state to whom: twins are found by comparing what members say they hold, never configured."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from understudy.foundation.ids import Rank


@dataclass(frozen=True, slots=True)
class NoDonor:
    """A rank whose bytes nobody alive holds."""

    rank: Rank
    reason: str


def choose_donors(
    receivers: Collection[Rank], holders: Collection[Rank], twin_keys: Mapping[Rank, str], limit: int = 8
) -> dict[Rank, tuple[Rank, ...]] | NoDonor:
    """For each receiver up to `limit` holders with the same twin key, spread so that no holder serves all."""
    holders_by_key: dict[str, list[Rank]] = defaultdict(list)
    for holder in sorted(holders):
        if holder in twin_keys:
            holders_by_key[twin_keys[holder]].append(holder)
    chosen: dict[Rank, tuple[Rank, ...]] = {}
    for turn, receiver in enumerate(sorted(receivers)):
        key = twin_keys.get(receiver)
        twins = holders_by_key.get(key, []) if key is not None else []
        if not twins:
            return NoDonor(receiver, f"no live rank holds the same shard as rank {receiver} (it has no twin)")
        start = turn % len(twins)
        chosen[receiver] = tuple((twins[start:] + twins[:start])[:limit])
    return chosen
