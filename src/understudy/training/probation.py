"""After a recovery this rank looks at its own state for a few steps (`protocol.probation`).

Costs three comparisons of integers per step outside of that time. In it, at every commit: one pass over the parameters,
a look at the losses of the step, and the digest that twins compare. State that is bad is told, and neither saved nor
copied. In peer memory an older copy is held meanwhile, beside the two that there always are.
"""

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from understudy.foundation.ids import StepNumber
from understudy.ledger.records import Sharing
from understudy.protocol.commands import ResumeAt
from understudy.protocol.events import UNTIMED, BadStateTold, DigestTold
from understudy.state.manifest import Protected, local
from understudy.training.backwards import Backwards

if TYPE_CHECKING:
    from understudy.training.member import Member


class Probation:
    """Of one member. `until`: the last state that is looked at, by the number of its steps."""

    def __init__(self) -> None:
        self.until = -1

    def covers(self, step: int) -> bool:
        """Is what this step makes of the state looked at?"""
        return step < self.until

    def begin(self, member: "Member", plan: ResumeAt) -> None:
        if plan.probation:
            self.until = plan.step + plan.probation
            member.saving.hold_for_probation(plan.step)
        elif self.until >= 0:
            self.end(member)

    def end(self, member: "Member") -> None:
        self.until = -1
        member.saving.probation_is_over()


class Losses:
    """With which numbers the backward passes of one step began."""

    def __init__(self) -> None:
        self._seen: list[torch.Tensor] = []
        self._backwards = Backwards(look=self._look)

    def begin(self) -> None:
        self._backwards.begin()

    def end(self) -> None:
        self._backwards.end()

    @torch.no_grad()
    def _look(self, roots: tuple[Any, ...]) -> None:
        for root in roots:  # of a stage of a pipeline they are no losses, and not single numbers
            if isinstance(root, torch.Tensor) and root.is_floating_point() and root.numel() == 1:
                self._seen.append(local(root.detach()).clone())

    def trouble(self, stepped: bool) -> str | None:
        """`stepped`: an optimizer has. A loss that is too large once it is scaled is how a scaler finds its
        scale, and it skips that step."""
        for loss in self._seen:
            if loss.isnan().any() or (stepped and loss.isinf().any()):
                return f"its loss is not finite ({loss.item()})"
        return None


def resumes_finite(member: "Member", plan: ResumeAt) -> bool:
    """Asked when the state is there and before anything is done with it."""
    return not plan.probation or is_finite(member.protected)


def after_commit(member: "Member", attempt: int, sharing: Sharing | None, bad_loss: str | None) -> None:
    """Write the step down, and do with its state what is due: look at it, save it, compare it."""
    assert member.holds is not None
    if not member.established:  # nobody knows yet who is whose twin
        member.ledger.committed(member.protected, member.generation, member.holds - 1, attempt, sharing)
        return
    watched = member.probation.covers(member.holds - 1)
    certain = watched and not is_finite(member.protected)
    why = "its parameters are not finite" if certain else bad_loss
    if watched and why is not None:
        told = BadStateTold(
            at=UNTIMED,
            member=member.control.member,
            generation=member.generation,
            step=member.holds,
            why=why,
            certain=certain,
        )
        member.control.send(told)
        member.saving.begin(member, attempt, sharing, trusted=False)
        return
    if member.probation.until >= 0 and not watched:
        member.probation.end(member)
    member.saving.begin(member, attempt, sharing)
    compare_with_twins(member, member.holds, watched)


def compare_with_twins(member: "Member", holds: StepNumber, watched: bool) -> None:
    """What no copy could bring back (the loader's position, the script's own random streams) is not copied: then twins
    that differ are found, and nobody goes back."""
    due = member.copies.due(holds)
    if not due and not (watched and member.somebody_has_a_twin):
        return
    digest = member.copies.digest(member.protected)
    if due and not member.own_state.exists:
        member.copies.take(member.protected, holds)
    told = DigestTold(
        at=UNTIMED,
        member=member.control.member,
        generation=member.generation,
        step=holds,
        digest=digest,
        copied=due,
    )
    member.control.send(told)


@torch.no_grad()
def is_finite(protected: Protected) -> bool:
    """Are all parameters of this rank? Buffers may well hold infinities, as masks do."""
    by_device: dict[torch.device, list[torch.Tensor]] = defaultdict(list)
    for module in protected.modules.values():
        for parameter in map(local, module.parameters()):
            if parameter.is_floating_point() and parameter.numel():
                by_device[parameter.device].append(parameter)
    for parameters in by_device.values():
        largest = torch._foreach_norm(parameters, math.inf)  # unlike a sum of squares it does not overflow
        if not torch.stack([norm.double() for norm in largest]).isfinite().all():
            return False
    return True
