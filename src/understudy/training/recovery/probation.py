"""After a recovery this rank looks at its own state for a few steps (`protocol.probation`).

Costs three comparisons of integers per step outside of that time. In it, at every commit: one pass over the parameters,
a look at the losses of the step, and the digest that twins compare. State that is bad is told, and neither saved nor
copied. In peer memory an older copy is held meanwhile, beside the two that there always are.
"""

import math
from collections import defaultdict
from typing import Any

import torch

from understudy.foundation.ids import StepNumber
from understudy.ledger.records import Sharing
from understudy.protocol.commands import ResumeAt
from understudy.protocol.events import UNTIMED, BadStateTold, DigestTold
from understudy.state.protected_state import Protected, local
from understudy.training.backwards import Backwards
from understudy.training.control import ControlLine
from understudy.training.rank_local.state import RankLocalState
from understudy.training.replicas import Replicas
from understudy.training.snapshots.divergence import DivergenceSnapshots
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.status import MemberStatus
from understudy.training.step_ledger import StepLedger


class Probation:
    """Of one member."""

    def __init__(
        self,
        *,
        control: ControlLine,
        status: MemberStatus,
        protected: Protected,
        rank_local: RankLocalState,
        ledger: StepLedger,
        replicas: Replicas,
        peer_memory: PeerMemory,
        divergence: DivergenceSnapshots,
    ) -> None:
        self._control, self._status, self._protected, self._rank_local = control, status, protected, rank_local
        self._ledger, self._replicas, self._peer_memory, self._divergence = ledger, replicas, peer_memory, divergence
        self._until = -1  # the last state that is looked at, by the number of its steps

    def covers(self, step: int) -> bool:
        """Is what this step makes of the state looked at?"""
        return step < self._until

    def reads(self, step: int) -> bool:
        """Is what this step makes of the state looked at, compared or written down with digests?"""
        return self.covers(step) or self._ledger.wants_digest(step) or self._divergence.due(step + 1)

    def begin(self, plan: ResumeAt) -> None:
        if plan.probation:
            self._until = plan.step + plan.probation
            self._peer_memory.hold_for_probation(plan.step)
        elif self._until >= 0:
            self._end()

    def _end(self) -> None:
        self._until = -1
        self._peer_memory.probation_is_over()

    def resumes_finite(self, plan: ResumeAt) -> bool:
        """Asked when the state is there and before anything is done with it."""
        return not plan.probation or is_finite(self._protected)

    def after_commit(self, attempt: int, sharing: Sharing | None, bad_loss: str | None) -> None:
        """Write the step down, and do with its state what is due: look at it, save it, compare it."""
        holds, generation = self._status.holds, self._status.generation
        assert holds is not None
        if not self._status.established:  # twins are not known yet
            self._ledger.committed(self._protected, generation, holds - 1, attempt, sharing)
            return
        watched = self.covers(holds - 1)
        certain = watched and not is_finite(self._protected)
        why = "its parameters are not finite" if certain else bad_loss
        if watched and why is not None:
            member = self._control.member
            self._control.send(
                BadStateTold(at=UNTIMED, member=member, generation=generation, step=holds, why=why, certain=certain)
            )
            self._peer_memory.begin(attempt, sharing, trusted=False)
            return
        if self._until >= 0 and not watched:
            self._end()
        self._peer_memory.begin(attempt, sharing)
        self._compare_with_twins(holds, watched)

    def _compare_with_twins(self, holds: StepNumber, watched: bool) -> None:
        """What no copy could bring back (the loader's position, the script's own random streams) is not copied: then
        twins that differ are found, and no rank goes back."""
        due = self._divergence.due(holds)
        if not due and not (watched and self._replicas.some_rank_has_a_twin):
            return
        digest = self._divergence.digest(self._protected)
        if due and not self._rank_local.exists:
            self._divergence.take(self._protected, holds)
        self._control.send(
            DigestTold(
                at=UNTIMED,
                member=self._control.member,
                generation=self._status.generation,
                step=holds,
                digest=digest,
                copied=due,
            )
        )


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
