"""Steps that are done in parts, in a world that goes on without some of its ranks.

    for step in job.steps(...):     yields the same step once for each part (`accumulation`)
        with step:                  EarlyPart: unwound after its backward passes; its gradients are kept
            ...                     LastPart: an ordinary step, on the sum

A part that is cut short by a fault is like any other attempt that is: the step begins again with its first part.
"""

from collections.abc import Callable
from types import TracebackType

import torch

from understudy.errors import PartFinished, StepAbandoned, UsageError
from understudy.ledger.records import Sharing
from understudy.training.degraded.accumulation import Accumulation
from understudy.training.member import Member
from understudy.training.steps import ProtectedStep

Seed = Callable[[int, int], None]
"""Seeds every random stream for (step, share)."""


def next_part(member: Member, accumulation: Accumulation, number: int, attempt: int, seed: Seed) -> ProtectedStep:
    kind = LastPart if accumulation.next.last else EarlyPart
    return kind(member, accumulation, number, attempt, seed)


class _PartStep(ProtectedStep):
    def __init__(self, member: Member, accumulation: Accumulation, number: int, attempt: int, seed: Seed) -> None:
        share = accumulation.next.share
        super().__init__(member, number, attempt, lambda step: seed(step, share), accumulation.batch)
        self._accumulation = accumulation

    def __enter__(self) -> "_PartStep":
        super().__enter__()
        self._accumulation.begin()
        return self


class EarlyPart(_PartStep):
    """Ends with its backward passes, and at the latest where the optimizer would change something."""

    looks_at_loss = False  # the last part commits the step

    def before_optimizer(self, _optimizer: torch.optim.Optimizer | None = None) -> None:
        if self._member.contact.lost():
            raise StepAbandoned(f"step {self.number} is abandoned in one of its parts")
        raise PartFinished(f"step {self.number} has more parts")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._accumulation.end()
        self._member.body.end()
        if error is not None and not isinstance(error, PartFinished):
            self._accumulation.start_over()
            return super().__exit__(kind, error, trace)
        try:
            self._accumulation.advance()
        except UsageError as wrong:
            self._member.errors.report(wrong, self.number)
            raise
        self.partial = self._left = True
        self._member.body.protected.forget_scaling()
        self._member.body.put_back_buffers()  # statistics follow this rank's own batch, as they do in a whole world
        return True


class LastPart(_PartStep):
    """An ordinary step, to whose gradients those of the earlier parts are added."""

    def before_optimizer(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        super().before_optimizer(optimizer)
        self._accumulation.refuse_late_backward()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._accumulation.end()
        try:
            return super().__exit__(kind, error, trace)
        finally:
            self._accumulation.start_over()

    def shared(self) -> Sharing | None:
        return self._accumulation.record()
