"""Which units have been trained: only then do equal bytes mean that two ranks hold the same thing.

Stages of a pipeline, or experts, may have equal names and shapes and begin with equal values. They are told apart by
their gradients, once these have changed something: not after a step at a learning rate of 0, not after one that a
gradient scaler skipped, not for an expert that got no tokens (weight decay changes those too, and all of them alike).

So a world is established when every rank has learnt something, at the latest after `PATIENCE` steps. A unit that is not
trained by then is shared only between ranks that are equal in all that is.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from understudy.state.digests import number_of
from understudy.state.protected_state import Protected, local, parameters_of

PATIENCE = 50
"""Steps after which a world is established even if some rank has learnt nothing."""


class Learning:
    """Of one rank. Call `watch` before each step until the world is established, and `look` after it."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._hook: Any = None
        self._before: dict[str, int] = {}
        self._got_gradients: set[int] = set()
        self._stepped = False
        self.steps = 0
        self.held: dict[str, int] = {}
        self.trained: frozenset[str] = frozenset()

    def watch(self) -> None:
        if self._hook is None:
            if self._protected.optimizers:
                self._before = self._protected.holdings()
            self._hook = register_optimizer_step_pre_hook(self._before_optimizer)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepped = True
        for parameter in parameters_of(optimizer):
            if id(parameter) not in self._got_gradients and _is_nonzero(parameter.grad):
                self._got_gradients.add(id(parameter))

    def look(self) -> bool:
        """After a step: has this rank learnt something? A script that protects no optimizer cannot be watched at it."""
        self.steps += 1
        watched = bool(self._protected.optimizers)
        if watched and not self._stepped and self.steps < PATIENCE:
            return False
        self.held = self._protected.holdings()
        still = self._without_gradients() | {
            unit for unit, number in self.held.items() if number == self._before.get(unit)
        }
        self.trained = frozenset(self.held) - (still if watched else set())
        return bool(self.trained) or not watched

    def _without_gradients(self) -> set[str]:
        """Units of parameters that an optimizer has stepped without a gradient that says anything."""
        return {
            unit for unit, parameter in self._protected.optimized_units() if id(parameter) not in self._got_gradients
        }

    def end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def told_apart(held: Mapping[str, int], trained: Collection[str], proven: Collection[str], rank: int) -> dict[str, int]:
    """`held` with other numbers for what is not trained: equal only on ranks that are equal in all that is. Where
    nothing is, on no other rank. `proven`: units whose structure says which ranks share them."""
    learnt = "\n".join(f"{unit}={number}" for unit, number in held.items() if unit in trained)
    among = learnt or f"rank {rank}"
    return {
        unit: number if unit in trained or unit in proven else number_of(f"{number}|{among}".encode())
        for unit, number in held.items()
    }


def _is_nonzero(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return False
    part = local(gradient)
    return bool((part._values() if part.is_sparse else part).count_nonzero())
