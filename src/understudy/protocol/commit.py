"""The commit rule: after a fault, is the interrupted step committed or run again?

State changes only inside `optimizer.step()`. The only danger is that some ranks applied step N and others cannot.

- Some survivor already holds N+1: the step is committed. A rank that stands at the fence of N applies it too; a rank
  that is behind without final gradients takes the state from a twin.
- No survivor holds N+1 and every survivor stands at the fence of N: **commit**, all ranks apply the step.
- No survivor holds N+1, and some have not arrived, or arrived asynchronously: **retry**, all ranks run step N again.

A rank arrives *asynchronously* where a device completes collectives after the host has started them. When such a
collective is aborted on one rank, another rank can complete it with garbage and see no error. What a survivor says of
its own gradients is then no proof: a lost rank may have aborted first. That a rank has passed the fence is one, for a
rank that aborts does not arrive any more, and no rank passes before all have arrived, the lost ranks too. If the rank
that passed was lost as well, no rank holds N+1, and the step runs again from the same state and gives the same.

Every member derives its own action from the one number that `judge` returns (see `Action`), so a verdict stays small
however many ranks there are.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, Reason, because


class Action(enum.Enum):
    """What one member does to reach the step at which all resume."""

    HOLD = "hold"  # it has that state; an unfinished attempt is dropped
    APPLY = "apply"  # it stands at the fence of the step before: let the optimizer go on
    RECEIVE = "receive"  # it is behind or empty: take the state from a twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All resume at `step`. `committed` is the interrupted step when the verdict completed it."""

    step: StepNumber
    committed: StepNumber | None
    reason: Reason


def action_for(position: Position, step: StepNumber) -> Action:
    """What a member at `position` does so that it holds state `step`."""
    if position.holds == step:
        return Action.HOLD
    if position.at_fence and position.holds is not None and position.holds + 1 == step:
        return Action.APPLY
    return Action.RECEIVE


def judge(positions: Mapping[Rank, Position]) -> Verdict | None:
    """Decide from the survivors' positions. None: no member has any state left."""
    held = {rank: position.holds for rank, position in positions.items() if position.holds is not None}
    if not held:
        return None
    newest = max(held.values())
    behind = sorted(rank for rank, holds in held.items() if holds < newest)
    if behind:
        return Verdict(
            step=newest,
            committed=StepNumber(newest - 1),
            reason=because(
                Code.APPLIED_BY_SOME,
                step=newest - 1,
                count=len(held) - len(behind),
                survivors=len(held),
                ranks=tuple(behind),
            ),
        )
    waiting = sorted(rank for rank in held if not positions[rank].arrived)
    if not waiting:
        return Verdict(
            step=StepNumber(newest + 1),
            committed=newest,
            reason=because(Code.ALL_AT_FENCE, step=newest),
        )
    return Verdict(step=newest, committed=None, reason=_why_retry(positions, waiting, newest))


def _why_retry(positions: Mapping[Rank, Position], waiting: list[Rank], step: StepNumber) -> Reason:
    """`waiting`: ranks without an arrival that counts by itself."""
    before = tuple(rank for rank in waiting if not positions[rank].at_fence)
    if before:
        return because(Code.NOT_ALL_AT_FENCE, ranks=before, step=step)
    return because(Code.NO_RANK_PASSED_FENCE, ranks=tuple(waiting), step=step)
