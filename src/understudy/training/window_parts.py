"""What a window is made of: its parts, with what there was when each was entered, and an attempt at all of it.

Called by `windows`, which knows when.
"""

import functools
from collections.abc import Callable
from typing import Any

from understudy.errors import UsageError
from understudy.groups.engines import Switches
from understudy.training.data.batch_content import digest_batch
from understudy.training.loop_state import Mark
from understudy.training.member import Member
from understudy.training.steps import ProtectedStep

Prepare = Callable[[int], None]


def content_of(call: "functools.partial[Any]") -> list[int]:
    """Digests of those arguments that are data."""
    found = (digest_batch(value) for value in (*call.args, *call.keywords.values()) if value is not None)
    return [digest for digest in found if digest is not None]


def no_batch(_step: int) -> Any:
    raise UsageError("a window has no batch of its own: give the loader to job.rewinding()")


class Part:
    """One call of a window, and what there was when it was entered."""

    def __init__(self, call: "functools.partial[Any]", taken: bytes = b"", switches: Switches | None = None) -> None:
        self.call, self.taken, self.switches = call, taken, switches or []
        self.content = content_of(call)
        self.is_over = False
        self.result: bytes | None = None

    def mark(self) -> Mark:
        return Mark(self.taken, self.result)


NOTHING = Part(functools.partial(int))
"""Stands for a part that will not run again."""


class WindowStep(ProtectedStep):
    """An attempt at a window. `inside`: a part of it runs. `torn`: a fault has cut it short behind its fence."""

    def __init__(self, member: Member, number: int, attempt: int, prepare: Prepare, arrive: Callable[[], None]) -> None:
        super().__init__(member, number, attempt, prepare, no_batch)
        self.inside = self.torn = False
        self._arrive = arrive

    def before_optimizer(self, optimizer: Any = None) -> None:
        if not self.inside:
            raise UsageError(
                "an optimizer steps outside of the parts of a window: nothing could be run again after a fault. Call "
                "it in a part: window.part(optimizer.step)()"
            )
        super().before_optimizer(optimizer)

    def applied(self) -> None:
        """From here on the window counts."""
        self._pass_fence()
        self._ended = True

    def _pass_fence(self) -> None:
        if not self._passed:
            self._arrive()  # a replacement may begin behind the fence
        super()._pass_fence()

    def _recover(self) -> None:
        self.torn = self._passed and not self.committed and not (self._ended or self._all_applied())
        super()._recover()
