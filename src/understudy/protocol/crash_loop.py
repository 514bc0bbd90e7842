"""When replacing a member is useless: the same failure in the same step on the replacement.

A software bug is not cured by migration. Without this rule a crash loop would burn every spare.
"""

from dataclasses import dataclass, field

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.causes import Cause
from understudy.protocol.reasons import Code, Reason, because


@dataclass(slots=True)
class CrashLoop:
    """Remembers the last failure of each rank. Constant cost per loss."""

    last: dict[Rank, tuple[StepNumber | None, str]] = field(default_factory=dict)
    deaths: dict[Rank, tuple[StepNumber | None, int]] = field(default_factory=dict)

    def why_give_up(self, rank: Rank, cause: Cause, deaths_per_step_limit: int) -> Reason | None:
        """A reason to stop the job, or None when a replacement makes sense."""
        if cause.repeats:
            return because(Code.FAILS_EVERYWHERE, rank=rank, step=cause.step, cause=cause.reason)
        if cause.own_fault:
            if self.last.get(rank) == (cause.step, cause.identity):
                return because(Code.FAILED_TWICE, rank=rank, step=cause.step, cause=cause.reason)
            self.last[rank] = (cause.step, cause.identity)
        step, count = self.deaths.get(rank, (None, 0))
        count = count + 1 if step == cause.step else 1
        self.deaths[rank] = (cause.step, count)
        if count > deaths_per_step_limit:
            limit = deaths_per_step_limit
            return because(Code.LOST_TOO_OFTEN, rank=rank, count=count, step=cause.step, limit=limit)
        return None

    def resumed(self, step: StepNumber) -> None:
        """The world has resumed before `step`: a rank that failed in its setup has set up since, and a rank that failed
        in an earlier step is past it. Only a failure in a step that is still to come may meet its like again."""
        self.last = {rank: last for rank, last in self.last.items() if last[0] is not None and last[0] >= step}
        self.deaths = {
            rank: deaths for rank, deaths in self.deaths.items() if deaths[0] is not None and deaths[0] >= step
        }
