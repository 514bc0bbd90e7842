"""What a script's body does, seen in its first steps: can it be run on a part of a step?

A body that takes its batch from `step.batch()`, runs its backward passes and then its optimizers can be: it is unwound
before the first optimizer, and has computed all its gradients by then. Nothing is watched once engines have settled.
"""

from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from understudy.training.backwards import Backwards


class Habits:
    """Call `watch` at the beginning of the first body and `finish` at its end."""

    def __init__(self) -> None:
        self._backwards = Backwards(before=self._before_backward)
        self._hook: Any = None
        self._known = self._fetched = self._optimized = self._late = False

    def watch(self) -> None:
        if self._hook is not None:
            return
        self._optimized = False
        self._backwards.count = 0
        self._backwards.begin()
        self._hook = register_optimizer_step_pre_hook(self._before_optimizer)

    def finish(self, fetched: bool) -> None:
        """`fetched`: the body has asked for its batch."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            self._backwards.end()
            self._known, self._fetched = True, fetched

    def _before_backward(self) -> None:
        self._late |= self._optimized

    def _before_optimizer(self, *_: Any) -> None:
        self._optimized = True
        self._late |= self._backwards.running

    @property
    def backward_passes(self) -> int:
        """How many there were."""
        return self._backwards.count

    def objection(self) -> str | None:
        """Why the body cannot be run on a part of a step, if it cannot."""
        if not self._known:
            return "its first step is not behind it"
        if not self._fetched:
            return "its body does not take its batch from step.batch()"
        if not self._backwards.count:
            return "its body calls neither loss.backward() nor torch.autograd.backward()"
        if self._late:
            return "its body runs a backward pass after an optimizer has stepped, or an optimizer within one"
        return None
