"""Twins compare their state every so many steps. Where they differ, a rank's memory has changed without a fault.

All ranks tell a digest after the same steps. When all have told and all twins agree, that state is *agreed*: members
keep a copy of it. When a twin differs from most of its twins it is ended, and all ranks go back to the agreed state,
because what it computed since then is in the state of every rank by now. Of two that differ it cannot be told which is
right: both go back and compute again; if they differ again at the same step, the job stops.

Ranks without a twin tell digests too, and are not compared.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.checks import Checks
from understudy.protocol.commands import Command, DecisionKind, KeepAgreed, KillMember, Outcome
from understudy.protocol.context import Context
from understudy.protocol.ending import EndingState
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.recovery_kind import Target
from understudy.protocol.roster import Member, Roster
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage
from understudy.protocol.succession import FORGOTTEN

_MOST_TOLD = 8
"""Comparisons that may wait for the digests of some ranks at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a comparison came to. `odd`: ranks that differ from most of their twins. `torn`: twins that differ without
    a majority, so that it cannot be told which are right."""

    step: StepNumber
    odd: tuple[Rank, ...] = ()
    torn: tuple[Rank, ...] = ()

    @property
    def agreed(self) -> bool:
        return not self.odd and not self.torn

    def reason(self, agreed: StepNumber | None) -> Reason:
        """`agreed`: the newest state that all twins had in common."""
        found = [because(Code.OUTLIERS, ranks=self.odd)] if self.odd else []
        found += [because(Code.UNDECIDABLE, ranks=self.torn)] if self.torn else []
        since = because(Code.NEVER_AGREED) if agreed is None else because(Code.AGREED_BEFORE, step=agreed)
        return because(Code.TWINS_DIFFER, found=tuple(found), step=self.step - 1, since=since)


@dataclass(slots=True)
class ReplicaCheckState:
    """`agreed`: the newest state (by the number of its steps) that all twins had in common."""

    agreed: StepNumber | None = None
    told: dict[StepNumber, dict[Rank, str]] = field(default_factory=dict, metadata=FORGOTTEN)
    torn_at: StepNumber | None = None  # where two twins differed before

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
        """None until all have told. `copied`: if all agree, all ranks can go back to that state."""
        if self.agreed is not None and step <= self.agreed:
            return None
        told = self.told.setdefault(step, {})
        told[rank] = digest
        for stale in sorted(self.told)[:-_MOST_TOLD]:  # a rank never told, or its twins are not known
            del self.told[stale]
        if len(told) < world_size or len(twin_keys) < world_size:
            return None  # a coordinator that has just taken over does not know all twins yet
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


class ReplicaCheck:
    """What follows when twins have told their digests: a state on which all agree, or ranks whose bytes differ."""

    def __init__(
        self,
        roster: Roster,
        round_: Round,
        checks: Checks,
        ending: EndingState,
        state: ReplicaCheckState,
        context: Context,
    ) -> None:
        self.roster, self.round, self.checks, self.ending = roster, round_, checks, ending
        self.state, self.context = state, context

    def on_digest(self, event: ev.DigestTold, member: Member) -> list[Command]:
        current = (
            event.generation == self.round.state.generation
            and self.round.state.stage is Stage.TRAINING
            and not self.ending.released
        )
        if not current or member.rank is None or self.roster.holders.get(member.rank) != member.id:
            return []
        round_ = self.round.state
        present, keys, copied = self.round.present_count, round_.twin_keys, event.copied
        never_before = self.state.agreed is None
        finding = self.state.take(member.rank, event.step, event.digest, present, keys, copied)
        if finding is None or (finding.agreed and not copied):
            return []
        if finding.agreed:
            members = tuple(holder.id for holder in self.round.present())
            keep = KeepAgreed(generation=self.round.state.generation, members=members, step=finding.step)
            return [self.round.record(), keep] if never_before else [keep]  # a successor must know that one can go back
        return self._on_disagreement(event.at, finding)

    def _on_disagreement(self, at: float, finding: Finding) -> list[Command]:
        agreed = self.state.agreed
        reason = finding.reason(agreed)
        if finding.torn and self.state.torn_at == finding.step:
            return self.context.stop(at, Outcome.FAILED, because(Code.TWINS_STILL_DIFFER, cause=reason), 1)
        self.state.torn_at = finding.step if finding.torn else None
        target = Target.NEWEST if agreed is None else Target.AGREED
        self.round.state.kind = replace(self.round.state.kind, target=target)
        probation = self.round.state.probation
        if agreed is None and probation is not None and probation.covers(finding.step):
            reason = self.checks.distrust(
                reason, must=not finding.odd
            )  # without the odd one, the others are in agreement
        noted: list[Command] = [self.round.decision(at, DecisionKind.CORRUPT, reason), self.round.record()]
        if not finding.odd:
            return noted + self.context.open(at, reason, DecisionKind.ALARM)
        ended = [self.roster.holder(rank).id for rank in finding.odd]
        self.round.state.killed.update(ended)
        return noted + [KillMember(member=member, reason=reason) for member in ended]
