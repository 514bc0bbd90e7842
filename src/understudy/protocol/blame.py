"""When replacing a member is useless: the same failure in the same step on the replacement.

A software bug is not cured by migration. Without this rule a crash loop would burn every spare.
"""

from dataclasses import dataclass, field

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.causes import Cause


@dataclass(slots=True)
class Blame:
    """Remembers the last failure of each rank. Constant cost per loss."""

    deaths_per_step_limit: int
    _last: dict[Rank, tuple[StepNumber | None, str]] = field(default_factory=dict)
    _deaths: dict[Rank, tuple[StepNumber | None, int]] = field(default_factory=dict)

    def verdict_on(self, rank: Rank, cause: Cause) -> str | None:
        """A reason to stop the job, or None when a replacement makes sense."""
        if cause.own_fault:
            if self._last.get(rank) == (cause.step, cause.identity):
                return (
                    f"rank {rank} failed twice in a row {_at(cause.step)} with the same failure ({cause.detail}); "
                    "another replacement would meet it again"
                )
            self._last[rank] = (cause.step, cause.identity)
        step, count = self._deaths.get(rank, (None, 0))
        count = count + 1 if step == cause.step else 1
        self._deaths[rank] = (cause.step, count)
        if count > self.deaths_per_step_limit:
            return (
                f"rank {rank} was lost {count} times {_at(cause.step)} (limit {self.deaths_per_step_limit}, "
                "--max-deaths-per-step)"
            )
        return None

    def copy(self) -> "Blame":
        return Blame(self.deaths_per_step_limit, dict(self._last), dict(self._deaths))


def _at(step: StepNumber | None) -> str:
    return "outside its steps" if step is None else f"in step {step}"
