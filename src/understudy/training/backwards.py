"""Stands between a script and autograd for a while: sees its backward passes, and gives them another weight.

`loss.backward()` and `torch.autograd.backward(...)` come through here. The weight goes in at the loss, so every
gradient has it from the beginning: nothing is scaled afterwards, and what the script does with its gradients (clipping)
is done to the right ones. A backward pass inside another one (activation checkpoints) belongs to that one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge


class Backwards:
    """`before` and `after` are called around each backward pass of the script; `count` says how many there were. `look`
    is shown what each of them begins with."""

    def __init__(
        self,
        weight: float = 1.0,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        look: Callable[[tuple[Any, ...]], None] = lambda _: None,
    ) -> None:
        self.weight, self._before, self._after, self._look = weight, before, after, look
        self._run_backward: Callable[..., None] | None = None
        self._stand_in = self._backward  # one object for good: what is compiled looks at its identity
        self._refusal: Exception | None = None
        self.count = 0
        self.running = False

    def begin(self) -> None:
        self._run_backward = torch.autograd.backward
        torch.autograd.backward = self._stand_in

    def end(self) -> None:
        """May be called twice."""
        if self._run_backward is not None:
            torch.autograd.backward = self._run_backward
            self._run_backward = None

    def refuse(self, error: Exception) -> None:
        """From now on a backward pass is an error."""
        self._refusal = error

    def _backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        run = self._run_backward
        assert run is not None
        if self.running:  # on whatever thread: the one that began it waits
            run(tensors, grad_tensors, *args, **kwargs)
            return
        if self._refusal is not None:
            raise self._refusal
        self.running = True
        try:
            self._before()
            self._look(_as_tuple(tensors))
            if self.weight != 1.0:
                grad_tensors = weighted(tensors, grad_tensors, self.weight)
            run(tensors, grad_tensors, *args, **kwargs)
            self.count += 1
            self._after()
        finally:
            self.running = False


def weighted(roots: Any, gradients: Any, weight: float) -> tuple[torch.Tensor | None, ...]:
    """What flows into a backward pass from `roots` so that all its gradients are `weight` times as large."""
    roots = _as_tuple(roots)
    if gradients is None or isinstance(gradients, torch.Tensor):
        gradients = (gradients,) * len(roots)
    return tuple(_scaled(root, given, weight) for root, given in zip(roots, gradients, strict=True))


def _as_tuple(roots: Any) -> tuple[Any, ...]:
    return (roots,) if isinstance(roots, torch.Tensor | GradientEdge) else tuple(roots)


def _scaled(root: Any, given: torch.Tensor | None, weight: float) -> torch.Tensor | None:
    if given is not None:
        return given * weight
    if isinstance(root, torch.Tensor) and root.requires_grad and root.numel() == 1:
        return torch.ones_like(root, requires_grad=False) * weight
    return None  # autograd has something to say about it
