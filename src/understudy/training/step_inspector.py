"""What a script's body does: can it be run on a part of a step, and where in it does the state change for good?

A body that takes its batch from `step.batch()`, runs its backward passes and then its optimizers can be run on a part:
it is unwound before the first optimizer, and has computed all its gradients by then. A body that computes on after an
optimizer has stepped (a GAN, a closure), or whose optimizer communicates, cannot; and what its optimizers do must be
taken back when a fault comes between them (`state.undo`).

A step begins with the protected state and nothing else: gradients that an earlier one left behind are dropped when a
step runs again, and a replacement never had them. So a body must use up the gradients that it computes: gradient
accumulation over several steps is refused.

Backward passes and optimizers are seen in every body. Collectives are seen in the first ones only, while the setup is
being recorded, because the recorder listens to them anyway.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from understudy.errors import UsageError
from understudy.state.protected_state import Protected, local, parameters_of
from understudy.training.backwards import Backwards

_RIGHT_LOOP = """
    for step in job.steps(total):
        with step:
            for part in step.batch().chunk(accumulation):
                (loss_of(part) / accumulation).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


class StepInspector:
    """Call `watch` at the beginning of each body and `finish` at its end; `learn` if it was one of the first ones."""

    def __init__(self) -> None:
        self._backwards = Backwards(before=self._before_backward)
        self._hooks: tuple[Any, ...] = ()
        self._known = self._fetched = False
        self._passes = 0
        self._inside = 0  # optimizers within optimizers
        self._between = False  # there was a collective after an optimizer: is another one to come?
        self.optimized = False
        """An optimizer has stepped in this body, whether it is protected or not."""
        self.late = False
        """A backward pass or communication came after an optimizer had begun to change state. Once seen, it stays."""

    def watch(self) -> None:
        if self._hooks:
            return
        self.optimized, self._between, self._inside = False, False, 0
        self._backwards.count = 0
        self._backwards.begin()
        self._hooks = (
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        )

    def finish(self) -> None:
        """May be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = ()
        self._backwards.end()

    def learn(self, fetched: bool) -> None:
        """The body that has ended is like all others. `fetched`: it has asked for its batch."""
        self._known, self._fetched, self._passes = True, fetched, self._backwards.count

    def collective(self) -> None:
        """One is issued. After the last optimizer it does no harm to the state."""
        if self._hooks and self.optimized:
            self.late |= self._inside > 0
            self._between = True

    def _before_backward(self) -> None:
        self.late |= self.optimized

    def _before_optimizer(self, *_: Any) -> None:
        self.late |= self._backwards.running or self._between
        self.optimized = True
        self._inside += 1

    def _after_optimizer(self, *_: Any) -> None:
        self._inside -= 1

    @property
    def computed_gradients(self) -> bool:
        """A backward pass has run in this body."""
        return self._backwards.count > 0

    @property
    def backward_passes(self) -> int:
        """How many there were in the first body."""
        return self._passes

    def objection(self) -> str | None:
        """Why the body cannot be run on a part of a step, if it cannot."""
        if not self._known:
            return "its first step is not behind it"
        if not self._fetched:
            return "its body does not take its batch from step.batch()"
        if not self._passes:
            return "its body calls neither loss.backward() nor torch.autograd.backward()"
        if self.late:
            return (
                "its body computes on or communicates after an optimizer has stepped, or steps one in a backward pass"
            )
        return None


def refuse_leftover_gradients(protected: Protected, step: int) -> None:
    """Asked when a body has run a backward pass and no optimizer. UsageError if the next step would add to its
    gradients. (Gradients that are not finite are what a scaler leaves that has skipped its optimizer.)"""
    gradients = list(_gradients(protected))
    if not any(bool(gradient.count_nonzero()) for gradient in gradients):
        return
    if all(bool(gradient.isfinite().all()) for gradient in gradients):
        raise UsageError(
            f"step {step} has computed gradients, and no optimizer has stepped: the next step would add to them. "
            "Gradients are not carried from step to step, because after a fault they would be missing. Accumulate "
            f"inside of one step, which then needs a batch that is so many times as large:\n{_RIGHT_LOOP}\n"
            "If these gradients are not wanted, call optimizer.zero_grad() at the end of the body"
        )


def _gradients(protected: Protected) -> Iterator[torch.Tensor]:
    for optimizer in (*protected.optimizers.values(), *protected.unnamed):
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                yield local(parameter.grad)
