"""After a recovery the world is on probation: for a few steps its state is watched, and if it is bad a lower rung is
taken.

Members look, at every commit in that time, whether their parameters and the step's loss are finite, and twins compare
digests. Bad state opens the next generation, and the world *steps down*: nothing that members hold counts, nor does
the source that was used last. The order is that of `Source`; an older state is further down than a newer
one of the same source, and from each rung the world steps down to an older state of it once at most. So this comes to
an end: a state that passes, or a stop. A loss alone is but a sign: where nothing is below, the world goes on as it is,
and that is said.

State that was not finite when the world resumed was not made so by the recovery, for its bytes are checked on their
way: that is said, and the world does not step down. What is done about it is in `checks`.
"""

import enum
from dataclasses import dataclass, replace

from understudy.foundation.ids import StepNumber
from understudy.protocol.commands import ResumeAt
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.rungs import Rung


class Source(enum.IntEnum):
    """Where the state of a world comes from, the most trusted first."""

    LIVE = 0
    AGREED = 1  # copies of a state on which all twins agreed
    SAVED = 2
    DURABLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """Of a world that resumed at `step`, until it holds `until`. `agreed`: from copies on which twins had agreed.
    `watched`: parameters must be finite. `stepped`: rungs from which the world stepped down before this one."""

    rung: Rung
    step: StepNumber
    until: StepNumber
    agreed: bool = False
    watched: bool = True
    stepped: tuple[Rung, ...] = ()

    def covers(self, step: StepNumber) -> bool:
        return self.step < step <= self.until

    @property
    def source(self) -> Source:
        match self.rung:
            case Rung.CHECKPOINT:
                return Source.DURABLE
            case Rung.PEER_MEMORY:
                return Source.SAVED
            case _:
                return Source.AGREED if self.agreed else Source.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """From a world that turned out bad. `must`: if nothing is below, the job stops; otherwise it goes on as it is."""

    bad: Probation
    must: bool = True

    def allows(self, source: Source, step: StepNumber) -> bool:
        bad = self.bad
        if source is bad.source and bad.rung in bad.stepped:
            return False
        return source is not Source.LIVE and (step < bad.step or (step == bad.step and source > bad.source))

    def left_of(self, position: Position) -> Position:
        """A position without everything that is not trusted."""
        return replace(
            position,
            holds=None,
            arrived=False,
            kept=position.kept if position.kept is not None and self.allows(Source.AGREED, position.kept) else None,
            saved=tuple(step for step in position.saved if self.allows(Source.SAVED, step)),
            durable=tuple(step for step in position.durable if self.allows(Source.DURABLE, step)),
            keeps=tuple((rank, step) for rank, step in position.keeps if self.allows(Source.SAVED, step)),
        )

    @property
    def reason(self) -> Reason:
        why = because(Code.NOT_TRUSTED, step=self.bad.step)
        return because(Code.NO_STRATEGY, strategy=self.bad.rung.value, why=why)


def steps_to_watch(machine_wants: int, plan: ResumeAt, degraded: bool, running: Probation | None, moved: bool) -> int:
    """How long members have to watch after this plan. Where no rank's state has changed there is nothing to watch; a
    planned move does not end a probation."""
    if moved:
        return 0 if running is None else max(0, running.until - plan.step)
    changed = plan.rung is not Rung.SWAP or plan.rewind or plan.donors or degraded
    return machine_wants if changed else 0
