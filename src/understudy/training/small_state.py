"""What the code between two steps may read and change beside parameters: schedulers and the like, learning rates.

A rank that takes its state while others are in what follows a step begins with that code itself, and does again what
the giver has done already. So each rank keeps what is small as it was when the step was committed. It is carried along
with the state, and a taker begins with it.
"""

from collections.abc import Iterator
from typing import Any

from understudy.errors import ProtectError
from understudy.state.encoding import fits, pack, unpack
from understudy.state.protected_state import Protected, options_of, update_options

_NAME = "the small state"
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
        return pack(self._state(), _NAME)

    def put(self, content: bytes) -> None:
        objects, settings = unpack(content)
        for name, state in objects.items():
            self._protected.objects[name].load_state_dict(state)
        for group, options in zip(self.groups(), settings, strict=True):
            update_options(group, options)

    def keep(self, step: int) -> None:
        """So many steps are committed, and the script goes on with what follows the last one."""
        if self._can_be_kept:
            state = self._state()
            self._can_be_kept = fits(state, _MOST)
            self._step, self._content = (step, pack(state, _NAME)) if self._can_be_kept else (-1, b"")

    def objection(self) -> str | None:
        """Why it cannot be kept as it is in every step."""
        try:
            if fits(self._state(), _MOST):
                return None
        except ProtectError as error:
            return str(error)
        return f"objects with more than {_MOST // 1024} KiB of tensors are protected, which are not kept in every step"

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
        return [objects, [options_of(group) for group in self.groups()]]

    def groups(self) -> Iterator[dict[str, Any]]:
        """Of all optimizers that are protected."""
        for optimizer in self._protected.optimizers.values():
            yield from optimizer.param_groups
