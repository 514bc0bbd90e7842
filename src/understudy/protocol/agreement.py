"""Twins compare their state every so many steps. Where they differ, somebody's memory has changed without a fault.

All ranks tell a digest after the same steps. When all have told and all twins agree, that state is *agreed*: members
keep a copy of it. When a twin differs from most of its twins it is ended, and everybody goes back to the agreed state,
because what it computed since then is in everybody's state by now. Of two that differ nobody can tell who is right:
both go back and compute again; if they differ again at the same step, the job stops.

Called only by `job`. Ranks without a twin tell digests too, and are not compared.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.donors import named

_MOST_TOLD = 8
"""Comparisons that may wait for the digests of some ranks at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a comparison came to. `odd`: ranks that differ from most of their twins. `torn`: whose twins differ, and
    nobody can tell who is right."""

    step: StepNumber
    odd: tuple[Rank, ...] = ()
    torn: tuple[Rank, ...] = ()

    @property
    def agreed(self) -> bool:
        return not self.odd and not self.torn

    def __str__(self) -> str:
        words = []
        if self.odd:
            words.append(f"{named(self.odd)} {'holds' if len(self.odd) == 1 else 'hold'} other bytes than most twins")
        if self.torn:
            words.append(f"{named(self.torn)} hold different bytes, and nobody can tell who is right")
        return f"{'; '.join(words)} after step {self.step - 1}"


@dataclass(slots=True)
class Agreement:
    """`agreed`: the newest state (by the number of its steps) that all twins had in common."""

    agreed: StepNumber | None = None
    told: dict[StepNumber, dict[Rank, str]] = field(default_factory=dict)
    torn_at: StepNumber | None = None  # where two twins differed before

    def copy(self) -> "Agreement":
        return Agreement(self.agreed, {step: dict(told) for step, told in self.told.items()}, self.torn_at)

    def interrupted(self) -> None:
        """A generation was opened: its members tell anew."""
        self.told.clear()

    def gone_back(self, step: StepNumber) -> None:
        """The world has resumed here: what was agreed on later is void."""
        if self.agreed is not None and self.agreed > step:
            self.agreed = None

    def take(
        self,
        rank: Rank,
        step: StepNumber,
        digest: str,
        world_size: int,
        twin_keys: Mapping[Rank, str],
        copied: bool = True,
    ) -> Finding | None:
        """None until all have told. `copied`: if all agree, everybody can go back to that state."""
        if self.agreed is not None and step <= self.agreed:
            return None
        told = self.told.setdefault(step, {})
        told[rank] = digest
        for stale in sorted(self.told)[:-_MOST_TOLD]:  # somebody never told, or its twins are not known
            del self.told[stale]
        if len(told) < world_size or len(twin_keys) < world_size:
            return None  # whoever has just taken over does not know all twins yet
        finding = compare(step, told, twin_keys)
        self.told = {later: digests for later, digests in self.told.items() if later > step}
        if finding.agreed:
            self.agreed = step if copied else self.agreed
            if self.torn_at is not None and step >= self.torn_at:
                self.torn_at = None
        return finding


def compare(step: StepNumber, told: Mapping[Rank, str], twin_keys: Mapping[Rank, str]) -> Finding:
    twins: dict[str, list[Rank]] = defaultdict(list)
    for rank in sorted(told):
        if rank in twin_keys:
            twins[twin_keys[rank]].append(rank)
    odd: list[Rank] = []
    torn: list[Rank] = []
    for ranks in twins.values():
        digests = Counter(told[rank] for rank in ranks)
        most, votes = digests.most_common(1)[0]
        if len(digests) == 1:
            continue
        if 2 * votes > len(ranks):
            odd += [rank for rank in ranks if told[rank] != most]
        else:
            torn += ranks
    return Finding(step=step, odd=tuple(sorted(odd)), torn=tuple(sorted(torn)))
