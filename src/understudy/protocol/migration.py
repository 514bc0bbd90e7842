"""Moving ranks whose processes live: prepare while training goes on, stop at a boundary, hand over.

    wanted ──a spare is warm──▶ prepared for ──all are prepared──▶ steps asked for ──all told──▶ `Recovery.move`

Until the last arrow nothing happens to the world, and a fault finds it as ever: if it takes a rank that was to move,
its understudy has that rank at once. From there on a move is a recovery whose generation is left at a boundary, and in
which a leaver gives its own state. If the leaver dies before that is done, it is an ordinary loss.

Called only by `job` and `granting`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from understudy.foundation.ids import MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import AskStep, Command, DecisionKind, RecordDecision
from understudy.protocol.donors import named
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.recovery import Recovery
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.stages import Stage
from understudy.protocol.telling import assign


@dataclass(slots=True)
class Migration:
    """`reasons`: of every rank that is to move, whether somebody prepares for it or not."""

    policy: Policy
    roster: Roster
    recovery: Recovery
    pool: SparePool
    reasons: dict[Rank, str] = field(default_factory=dict)
    told: dict[MemberId, StepNumber | None] = field(default_factory=dict)  # None: was asked and has not answered
    ask_again_at: float | None = None
    hopeless: set[Rank] = field(default_factory=set)  # absent ranks that meet the same failure again and again

    def copy(self, roster: Roster, recovery: Recovery, pool: SparePool) -> "Migration":
        told, hopeless = dict(self.told), set(self.hopeless)
        return Migration(self.policy, roster, recovery, pool, dict(self.reasons), told, self.ask_again_at, hopeless)

    # -- wishes -------------------------------------------------------------------------------------------------------

    def want(self, at: float, ranks: Iterable[Rank], reason: str) -> list[Command]:
        new = [rank for rank in ranks if rank not in self.reasons]
        self.reasons.update(dict.fromkeys(new, reason))
        if not new:
            return []
        return [self._decision(at, DecisionKind.PLAN, f"{named(new)} will move: {reason}"), self.recovery.record()]

    def give_up(self, at: float, rank: Rank, why: str) -> list[Command]:
        reason = self.reasons.pop(rank, None)
        self._forget_answers()
        if reason is None:
            return []
        text = f"rank {rank} stays where it is: {why}. It was to move because: {reason}"
        return [self._decision(at, DecisionKind.NO_MOVE, text, rank)]

    def settled(self, ranks: Iterable[Rank]) -> None:
        """These ranks have a new holder, in whatever way."""
        for rank in ranks:
            self.reasons.pop(rank, None)

    def interrupted(self) -> None:
        """A generation was opened: what was told about steps says nothing any more."""
        self._forget_answers()

    def _forget_answers(self) -> None:
        self.told.clear()
        self.ask_again_at = None

    # -- step by step -------------------------------------------------------------------------------------------------

    def go_on(self, at: float) -> list[Command]:
        """Whatever can be done now."""
        if self.recovery.stage is not Stage.TRAINING:
            return []
        if self.recovery.absent:
            return self._bring_the_absent_back(at)
        if not self.reasons:
            return []
        commands = self._find_understudies(at)
        prepared = [self._is_prepared(rank) for rank in self.roster.understudies]
        if prepared and all(prepared) and not self.told:
            commands += self._ask(at)
        return commands

    def _bring_the_absent_back(self, at: float) -> list[Command]:
        """Before anything else moves the world is to be whole."""
        recovery, commands = self.recovery, list[Command]()
        for rank in sorted(recovery.absent):
            wanted = rank not in self.roster.holders and rank not in self.hopeless
            spare = self.pool.warm_spare(recovery.home(rank), at) if wanted else None
            if spare is not None:
                self._forget_answers()
                text = f"{spare.id} prepares to take over rank {rank}, which is absent"
                commands += [self._decision(at, DecisionKind.PLAN, text, rank), *recovery.seat_absent(spare, rank, at)]
        if self._can_come_back() and not self.told:
            commands += self._ask(at)
        return commands

    def _can_come_back(self) -> list[Rank]:
        """Whole replicas of which everybody is prepared; whoever is benched only needs the state. Nobody while others
        still prepare: then they come back together."""
        recovery = self.recovery
        there = {rank: self.roster.holder(rank) for rank in recovery.absent if rank in self.roster.holders}
        if any(member.standing is Standing.JOINING for member in there.values()):
            return []
        return sorted(
            rank for rank in there if recovery.replicas.get(rank, frozenset()) & recovery.absent <= there.keys()
        )

    def _find_understudies(self, at: float) -> list[Command]:
        commands: list[Command] = []
        for rank in sorted(self.reasons):
            spare = None if rank in self.roster.understudies else self.pool.warm_spare_for_move(rank, at)
            if spare is None:
                continue
            self._forget_answers()  # it is one more to wait for
            self.roster.understudy(spare, rank, self.recovery.generation, at)
            text = f"{spare.id} prepares to take over rank {rank}: {self.reasons[rank]}"
            commands += [self._decision(at, DecisionKind.PLAN, text, rank), *assign(self.recovery, spare)]
        return commands

    def _is_prepared(self, rank: Rank) -> bool:
        return self.roster.members[self.roster.understudies[rank]].standing is Standing.PREPARED

    def on_absent_lost(self, at: float, rank: Rank, useless: str | None) -> list[Command]:
        """Whoever had, or prepared for, a rank without which the world goes on. `useless`: why not to try again."""
        self._forget_answers()
        if useless is None:
            return self.go_on(at)
        self.hopeless.add(rank)
        return [self._decision(at, DecisionKind.NO_MOVE, f"rank {rank} stays absent: {useless}", rank)]

    def on_understudy_lost(self, at: float, member: Member, why: str) -> list[Command]:
        """Once is enough: what ended it may well end the next one, and nothing hurries."""
        assert member.rank is not None
        return self.give_up(at, member.rank, f"{member.id}, which prepared for it, was lost: {why}")

    # -- choosing the boundary ----------------------------------------------------------------------------------------

    def _ask(self, at: float) -> list[Command]:
        members = tuple(member.id for member in self.recovery.present())
        self.told = dict.fromkeys(members)
        self.ask_again_at = at + self.policy.resend_every
        return [AskStep(generation=self.recovery.generation, members=members)]

    def on_step_told(self, event: ev.StepTold) -> list[Command]:
        if event.generation != self.recovery.generation or event.member not in self.told:
            return []
        self.told[event.member] = event.step
        steps = [step for step in self.told.values() if step is not None]
        if len(steps) < len(self.told) or self.recovery.stage is not Stage.TRAINING:
            return []
        newest = max(steps)
        boundary = StepNumber(self.policy.boundary_after(newest, self.recovery.pace))
        if self.recovery.absent:
            self._forget_answers()
            back = self._can_come_back()
            return self.recovery.come_back(event.at, back, boundary, boundary - newest) if back else []
        ranks = sorted(self.roster.understudies)
        reason = f"{named(ranks)} {'moves' if len(ranks) == 1 else 'move'} before step {boundary}: {self._why(ranks)}"
        self._forget_answers()
        self.settled(ranks)
        return self.recovery.move(event.at, ranks, boundary, boundary - newest, reason)

    def _why(self, ranks: list[Rank]) -> str:
        return "; ".join(sorted({self.reasons[rank] for rank in ranks if rank in self.reasons}))

    # -- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        if self.recovery.stage is not Stage.TRAINING:
            return None
        waits = [self._limit(member) for member in self._preparing()]
        if self.ask_again_at is not None:
            waits.append(self.ask_again_at)
        return min(waits, default=None)

    def on_tick(self, at: float) -> list[Command]:
        if self.recovery.stage is not Stage.TRAINING:
            return []
        late = [member for member in self._preparing() if at >= self._limit(member)]
        limit = f"it was not prepared within {self.policy.preparation_limit:g} s (--preparation-limit)"
        commands = self.recovery.kill(at, late, limit)
        if self.ask_again_at is not None and at >= self.ask_again_at:
            self.ask_again_at = at + self.policy.resend_every
            silent = tuple(member for member, step in self.told.items() if step is None)
            commands.append(AskStep(generation=self.recovery.generation, members=silent))
        return commands

    def _preparing(self) -> list[Member]:
        absent = (self.roster.holders[rank] for rank in self.recovery.absent if rank in self.roster.holders)
        members = (self.roster.members[id_] for id_ in (*self.roster.understudies.values(), *absent))
        killed = self.recovery.killed
        return [member for member in members if member.standing is Standing.JOINING and member.id not in killed]

    def _limit(self, member: Member) -> float:
        return self.recovery.preparation_deadline(member.id)

    def _decision(self, at: float, kind: DecisionKind, reason: str, rank: Rank | None = None) -> RecordDecision:
        return RecordDecision(at=at, generation=self.recovery.generation, kind=kind, reason=reason, rank=rank)
