"""What the code between two steps may read and change beside parameters: schedulers and the like, learning rates.

A rank that takes its state while others are in what follows a step begins with that code itself, and does again what
the giver has done already. So each rank keeps what is small as it was when the step was committed. It is carried along
with the state, and a taker begins with it.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from understudy.errors import ProtectError
from understudy.state.encoding import flatten, pack, unpack
from understudy.state.protected_state import Protected

_MOST = 256 * 1024
"""Bytes of tensors in it. What is larger (an average of weights as an object) is not kept in every step."""


class SmallState:
    """Of one member."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._step, self._content = -1, b""  # as it was when so many steps were committed
        self._can_be_kept = True

    def read(self) -> bytes:
        """ProtectError where it holds what cannot be told."""
        return pack(self._state(), "the small state")

    def put(self, content: bytes) -> None:
        objects, settings = unpack(content)
        for name, state in objects.items():
            self._protected.objects[name].load_state_dict(state)
        for group, options in zip(self._groups(), settings, strict=True):
            group.update(options)

    def keep(self, step: int) -> None:
        """So many steps are committed, and the script goes on with what follows the last one."""
        if self._can_be_kept:
            try:
                tensors: list[torch.Tensor] = []
                flatten(self._state(), "", tensors)
                self._can_be_kept = sum(tensor.nbytes for tensor in tensors) <= _MOST
                self._step, self._content = (step, self.read()) if self._can_be_kept else (-1, b"")
            except ProtectError:
                self._can_be_kept, self._step = False, -1

    def begin_again(self, step: int) -> bool:
        """This rank has taken the state of `step`, and begins with what follows it. Is what it begins with known?"""
        if self._step != step:
            return False
        self.put(self._content)
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "content": self._content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step, self._content = state["step"], state["content"]

    def _state(self) -> list[Any]:
        objects = {
            name: thing.state_dict()
            for name, thing in self._protected.objects.items()
            if not getattr(thing, "stays_in_steps", False)
        }
        return [objects, [settings_of(group) for group in self._groups()]]

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._protected.optimizers.values():
            yield from optimizer.param_groups


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """What a scheduler changes of an optimizer: its learning rate and the like."""
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
