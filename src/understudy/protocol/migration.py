"""Moving ranks whose processes live: prepare while training goes on, stop at a boundary, hand over.

    wanted ──a spare is warm──▶ prepared for ──all are prepared──▶ steps asked for ──all told──▶ `Round.move`

Until the last arrow nothing happens to the world, and a fault finds it as ever: if it takes a rank that was to move,
its understudy has that rank at once. From there on a move is a recovery whose generation is left at a boundary, and in
which a leaver gives its own state. If the leaver dies before that is done, it is an ordinary loss.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from understudy.foundation.ids import MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import AskStep, Command, DecisionKind, RecordDecision
from understudy.protocol.ending import EndingState
from understudy.protocol.fallback import FallbackState
from understudy.protocol.policy import Policy
from understudy.protocol.pool import SparePool
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.refill import Refill
from understudy.protocol.roster import Member, Roster, Standing
from understudy.protocol.round import Round
from understudy.protocol.stages import Stage
from understudy.protocol.succession import FORGOTTEN


@dataclass(slots=True)
class MigrationState:
    """`reasons`: of every rank that is to move, whether an understudy prepares for it or not."""

    reasons: dict[Rank, Reason] = field(default_factory=dict)
    told: dict[MemberId, StepNumber | None] = field(default_factory=dict, metadata=FORGOTTEN)  # None: has not answered
    ask_again_at: float | None = field(default=None, metadata=FORGOTTEN)


class Migration:
    def __init__(
        self,
        policy: Policy,
        roster: Roster,
        pool: SparePool,
        round_: Round,
        fallback: FallbackState,
        refill: Refill,
        ending: EndingState,
        state: MigrationState,
    ) -> None:
        self.policy, self.roster, self.pool, self.round = policy, roster, pool, round_
        self.fallback, self.refill, self.ending, self.state = fallback, refill, ending, state

    # -- wishes -------------------------------------------------------------------------------------------------------

    def want(self, at: float, ranks: Iterable[Rank], reason: Reason) -> list[Command]:
        new = [rank for rank in ranks if rank not in self.state.reasons]
        self.state.reasons.update(dict.fromkeys(new, reason))
        if not new:
            return []
        plan = because(Code.WILL_MOVE, ranks=tuple(new), why=reason)
        return [self._decision(at, DecisionKind.PLAN, plan), self.round.record()]

    def give_up(self, at: float, rank: Rank, why: Reason) -> list[Command]:
        wanted = self.state.reasons.pop(rank, None)
        self._forget_answers()
        if wanted is None:
            return []
        return [self._decision(at, DecisionKind.NO_MOVE, because(Code.STAYS, rank=rank, why=why, wanted=wanted), rank)]

    def settled(self, ranks: Iterable[Rank]) -> None:
        """These ranks have a new holder, in whatever way."""
        for rank in ranks:
            self.state.reasons.pop(rank, None)

    def interrupted(self) -> None:
        """A generation was opened: what was told about steps says nothing any more."""
        self._forget_answers()

    def _forget_answers(self) -> None:
        self.state.told.clear()
        self.state.ask_again_at = None

    # -- step by step -------------------------------------------------------------------------------------------------

    def go_on(self, at: float) -> list[Command]:
        """Whatever can be done now."""
        if self.ending.left or self.ending.released:
            return []
        commands = self._go_on(at)
        self.refill.for_the_absent(at)
        return commands

    def _go_on(self, at: float) -> list[Command]:
        if self.round.state.stage is not Stage.TRAINING:
            return []
        if self.round.state.absent:
            return self._bring_the_absent_back(at)
        if not self.state.reasons:
            return []
        commands = self._find_understudies(at)
        prepared = [self._is_prepared(rank) for rank in self.roster.understudies]
        if prepared and all(prepared) and not self.state.told:
            commands += self._ask(at)
        return commands

    def _bring_the_absent_back(self, at: float) -> list[Command]:
        """Before anything else moves the world is to be whole."""
        round_, commands = self.round.state, list[Command]()
        for rank in sorted(round_.absent):
            wanted = rank not in self.roster.holders and rank not in self.fallback.hopeless
            spare = self.pool.warm_spare(self.round.home(rank), at) if wanted else None
            if spare is not None:
                self._forget_answers()
                plan = because(Code.PREPARES_FOR_ABSENT, member=spare.id, rank=rank)
                commands += [
                    self._decision(at, DecisionKind.PLAN, plan, rank),
                    *self.round.seat_absent(spare, rank, at),
                ]
        if self._can_come_back() and not self.state.told:
            commands += self._ask(at)
        return commands

    def _can_come_back(self) -> list[Rank]:
        """Ranks of whole replicas in which every member is prepared; a benched one only needs the state. No rank while
        others still prepare: then they come back together."""
        round_ = self.round.state
        there = {rank: self.roster.holder(rank) for rank in round_.absent if rank in self.roster.holders}
        if any(member.standing is Standing.JOINING for member in there.values()):
            return []
        return sorted(rank for rank in there if round_.replicas.get(rank, frozenset()) & round_.absent <= there.keys())

    def _find_understudies(self, at: float) -> list[Command]:
        commands: list[Command] = []
        for rank in sorted(self.state.reasons):
            spare = None if rank in self.roster.understudies else self.pool.warm_spare_for_move(rank, at)
            if spare is None:
                continue
            self._forget_answers()  # it is one more to wait for
            self.roster.understudy(spare, rank, self.round.state.generation, at)
            self.round.give_device_to_understudy(spare, rank)
            plan = because(Code.PREPARES, member=spare.id, rank=rank, why=self.state.reasons[rank])
            commands += [self._decision(at, DecisionKind.PLAN, plan, rank), *self.round.outbound.assign(spare)]
        return commands

    def _is_prepared(self, rank: Rank) -> bool:
        return self.roster.members[self.roster.understudies[rank]].standing is Standing.PREPARED

    def on_absent_lost(self, at: float, rank: Rank, useless: Reason | None) -> list[Command]:
        """A member was lost that had, or prepared for, an absent rank. `useless`: why not to try again."""
        self._forget_answers()
        if useless is None:
            return self.go_on(at)
        self.fallback.hopeless.add(rank)
        return [self._decision(at, DecisionKind.NO_MOVE, because(Code.STAYS_ABSENT, rank=rank, why=useless), rank)]

    def on_understudy_lost(self, at: float, member: Member, why: Reason) -> list[Command]:
        """Once is enough: what ended it may well end the next one, and nothing hurries."""
        assert member.rank is not None
        return self.give_up(at, member.rank, because(Code.UNDERSTUDY_LOST, member=member.id, why=why))

    # -- choosing the boundary ----------------------------------------------------------------------------------------

    def _ask(self, at: float) -> list[Command]:
        members = tuple(member.id for member in self.round.present())
        self.state.told = dict.fromkeys(members)
        self.state.ask_again_at = at + self.policy.resend_every
        return [AskStep(generation=self.round.state.generation, members=members)]

    def on_step_told(self, event: ev.StepTold) -> list[Command]:
        if event.generation != self.round.state.generation or event.member not in self.state.told:
            return []
        self.state.told[event.member] = event.step
        steps = [step for step in self.state.told.values() if step is not None]
        if len(steps) < len(self.state.told) or self.round.state.stage is not Stage.TRAINING:
            return []
        newest = max(steps)
        boundary = StepNumber(self.policy.boundary_after(newest, self.round.state.pace))
        if self.round.state.absent:
            self._forget_answers()
            back = self._can_come_back()
            return self.round.come_back(event.at, back, boundary, boundary - newest) if back else []
        ranks = sorted(self.roster.understudies)
        reason = because(Code.MOVES, ranks=tuple(ranks), step=boundary, why=self._why(ranks))
        self._forget_answers()
        self.settled(ranks)
        return self.round.move(event.at, ranks, boundary, boundary - newest, reason)

    def _why(self, ranks: list[Rank]) -> tuple[Reason, ...]:
        """Each reason once."""
        return tuple(dict.fromkeys(self.state.reasons[rank] for rank in ranks if rank in self.state.reasons))

    # -- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        if self.round.state.stage is not Stage.TRAINING:
            return None
        waits = [self._limit(member) for member in self._preparing()]
        if self.state.ask_again_at is not None:
            waits.append(self.state.ask_again_at)
        return min(waits, default=None)

    def on_tick(self, at: float) -> list[Command]:
        if self.round.state.stage is not Stage.TRAINING:
            return []
        late = [member for member in self._preparing() if at >= self._limit(member)]
        commands: list[Command] = []
        if late:
            too_late = because(Code.NOT_PREPARED_IN_TIME, limit=self.policy.preparation_limit)
            commands += self.round.kill(at, late, too_late)
        if self.state.ask_again_at is not None and at >= self.state.ask_again_at:
            self.state.ask_again_at = at + self.policy.resend_every
            silent = tuple(member for member, step in self.state.told.items() if step is None)
            commands.append(AskStep(generation=self.round.state.generation, members=silent))
        return commands

    def _preparing(self) -> list[Member]:
        absent = (self.roster.holders[rank] for rank in self.round.state.absent if rank in self.roster.holders)
        members = (self.roster.members[id_] for id_ in (*self.roster.understudies.values(), *absent))
        killed = self.round.state.killed
        return [member for member in members if member.standing is Standing.JOINING and member.id not in killed]

    def _limit(self, member: Member) -> float:
        return self.round.preparation_deadline(member.id)

    def _decision(self, at: float, kind: DecisionKind, reason: Reason, rank: Rank | None = None) -> RecordDecision:
        return RecordDecision(at=at, generation=self.round.state.generation, kind=kind, reason=reason, rank=rank)
