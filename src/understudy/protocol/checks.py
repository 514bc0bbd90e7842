"""Checks after a recovery: what is done about state that turns out bad while the world is on probation.

The values (what is trusted, and until when) are in `probation`.
"""

from dataclasses import replace

from understudy.foundation.ids import StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import Command, DecisionKind
from understudy.protocol.context import Context
from understudy.protocol.ending import EndingState
from understudy.protocol.probation import Probation, Source, StepDown
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.roster import Member, Roster
from understudy.protocol.round import Round
from understudy.protocol.rungs import Rung
from understudy.protocol.stages import Stage


class Checks:
    def __init__(self, roster: Roster, round_: Round, ending: EndingState, context: Context) -> None:
        self.roster, self.round, self.ending, self.context = roster, round_, ending, context

    def on_all_resumed(self, at: float) -> list[Command]:
        """The probation begins."""
        round_ = self.round.state
        plan, before, down = round_.plan, round_.probation, round_.kind.below
        assert plan is not None
        if round_.boundary is not None:
            return []
        goes_on = before is not None and plan.step <= before.until and plan.step >= before.step
        stepped = before.stepped if before is not None and goes_on else ()
        if down is not None:
            stepped = (*down.bad.stepped, down.bad.rung)
        round_.kind = replace(round_.kind, below=None)
        rung = Rung.DEGRADE if plan.rung is Rung.SWAP and plan.absent else plan.rung
        until = StepNumber(plan.step + plan.probation)
        new = Probation(rung=rung, step=plan.step, until=until, agreed=plan.rewind, stepped=stepped)
        round_.probation = new if plan.probation else None
        bad = tuple(sorted(round_.not_finite))
        if not bad or not plan.probation:
            return []
        if before is not None and before.watched and before.covers(plan.step) and new.source is Source.LIVE:
            round_.probation = before  # it was well when that began
            return self.step_down(at, because(Code.NOT_FINITE, ranks=bad, step=plan.step))
        round_.probation = replace(new, watched=False)
        note = because(Code.NOT_FINITE_BEFORE, ranks=bad, step=plan.step)
        return [self.round.decision(at, DecisionKind.WARN, note)]

    def on_bad_state(self, event: ev.BadStateTold, member: Member) -> list[Command]:
        probation = self.round.state.probation
        current = (
            event.generation == self.round.state.generation
            and self.round.state.stage is Stage.TRAINING
            and not self.ending.released
        )
        if not current or member.rank is None or self.roster.holders.get(member.rank) != member.id:
            return []
        if probation is None or not probation.watched or not probation.covers(event.step):
            return []
        why = because(Code.BAD_STATE, rank=member.rank, step=event.step - 1, text=event.why)
        return self.step_down(event.at, why, must=event.certain)

    def step_down(self, at: float, why: Reason, must: bool = True) -> list[Command]:
        """Open the next generation, for a lower rung."""
        reason = self.distrust(why, must)
        noted = self.round.decision(at, DecisionKind.STEP_DOWN, reason)
        return [noted, *self.context.open(at, reason, DecisionKind.ALARM)]

    def distrust(self, why: Reason, must: bool = True) -> Reason:
        """The next verdict is to step down from the world that is on probation. Returns the reason for it."""
        round_, bad = self.round.state, self.round.state.probation
        assert bad is not None
        round_.kind, round_.probation = replace(round_.kind, below=StepDown(bad=bad, must=must)), None
        return because(
            Code.BAD_ON_PROBATION,
            first=bad.step,
            last=bad.until - 1,
            strategy=bad.rung.value,
            before=tuple(rung.value for rung in bad.stepped),
            why=why,
        )
