"""Stashes the gradients of a step's earlier parts where the script cannot change them.

A body may clip or otherwise change its gradients before `optimizer.step()`, and it may set them to zero at its
beginning. Both are meant for the sum over all parts, which exists only in the last one. So after a backward pass of an
earlier part the gradients are put aside; right before the next backward pass they are put back, and it adds to them.

A body that goes on after such a pass sees copies. They take as much memory as the gradients, until the part ends; the
activations are gone by then. FSDP2 keeps what it has not yet averaged over replicas by itself, and shows no gradient at
all; there the body sees zeros, so that a script which looks at its gradients finds some.
"""

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor


class GradientStash:
    """The gradients of `parameters`."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list({id(parameter): parameter for parameter in parameters}.values())
        self._stashed: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._shown: list[torch.Tensor] = []  # parameters whose gradient is not the real one

    def stash(self) -> None:
        """After a backward pass with which the part ends."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                self._stashed.append((parameter, parameter.grad))
                parameter.grad = None

    def stash_and_show(self) -> None:
        """After a backward pass from which the body goes on."""
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None:
                self._stashed.append((parameter, gradient))
                parameter.grad = gradient.detach().clone()
            elif isinstance(parameter, DTensor) and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            else:
                continue
            self._shown.append(parameter)

    def drop_shown(self) -> None:
        """The body has done its part: what it saw, and perhaps changed, is of no use."""
        for parameter in self._shown:
            parameter.grad = None
        self._shown = []

    def restore(self) -> None:
        """Before a backward pass, which adds to them."""
        self.drop_shown()
        for parameter, gradient in self._stashed:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
            parameter.grad = gradient
        self._stashed = []

    def clear(self) -> None:
        self.drop_shown()
        self._stashed = []
