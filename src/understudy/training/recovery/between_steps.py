"""Collectives between two steps, such as those of an evaluation: a rank that is lost there is replaced like any other.

The script's own code cannot be run again. So a rank that is cut short in a collective recovers in its place, and then
issues the same collective again, unless its result is told by other ranks (`tail`). When the world goes back to an
earlier step the results are not numbers, which is said, and the script comes back to its loop.

Only collectives of the default group whose result is the same on all ranks can be told to others. Results of others
stay unknown to a rank that lacks them. Engines that communicate below Python do not pass here, and neither do sends to
one rank.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from understudy.training.contact import Contact
from understudy.training.recovery.recovery import Recovery
from understudy.training.recovery.tail import TailResults
from understudy.training.status import MemberStatus

_ALIKE = (
    *("allreduce", "allreduce_coalesced", "broadcast", "barrier"),
    *("allgather", "_allgather_base", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
)
"""Methods of a group whose results are the same on all ranks."""

_OWN_RESULT = (
    *("reduce", "gather", "gather_single", "scatter", "alltoall", "alltoall_base", "all_to_all_single"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
)
_METHODS = (*_ALIKE, *_OWN_RESULT)

_TORCH = Path(torch.__file__).parent
_OWN = tuple(Path(__file__).parents[2] / name for name in ("training", "groups", "state"))
"""Where this package communicates by itself. Scripts that come with it (benchmark, faults) are like any other."""

_Tensors = list[torch.Tensor]


class BetweenSteps:
    """Of one member; used by its main thread. `at_end`: of a device that runs behind its host; has a collective that
    was waited for really come to its end? None: it has."""

    def __init__(
        self,
        *,
        status: MemberStatus,
        contact: Contact,
        tail: TailResults,
        recovery: Recovery,
        note: Callable[[str], None],
        at_end: Callable[[], bool] | None = None,
    ) -> None:
        self._status, self._contact, self._tail, self._recovery = status, contact, tail, recovery
        self._note, self._at_end = note, at_end
        self._told = False

    def install(self) -> None:
        """From now on every collective of this process passes here first."""
        for name in _METHODS:
            setattr(dist.ProcessGroup, name, self._guarded(getattr(dist.ProcessGroup, name), name))

    def _guarded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(method)
        def guarded(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            line = self._line_if_concerned()
            if line is None:
                return method(group, *args, **kwargs)
            self._tell(name, line)
            if group is not dist.group.WORLD:
                return method(group, *args, **kwargs)
            return self._perform(lambda: method(group, *args, **kwargs), name, _tensors_in(args[:1]))

        return guarded

    def _line_if_concerned(self) -> str | None:
        """Of the script, if it is between steps there."""
        if (
            not self._status.between_steps
            or self._status.in_section
            or threading.current_thread() is not threading.main_thread()
        ):
            return None
        return _line_of_script(sys._getframe(2))

    def _tell(self, name: str, line: str) -> None:
        if not self._told:
            self._told = self._tail.expected = True
            self._note(
                f"the script communicates between steps ({name.strip('_')}, called from {line}). If a rank is lost "
                "there, the others wait in their places for its replacement, which does what comes after the step "
                "with a model of the right state, but with what the body of a rehearsal has computed"
            )

    def _perform(self, issue: Callable[[], Any], name: str, tensors: _Tensors) -> "_Completed":
        before = [tensor.clone() for tensor in tensors]
        while not self._tail.fill(tensors):
            try:
                self._go_if_abandoned()
                work = issue()
                if work is not None:
                    work.wait()
                if self._at_end is not None and not self._at_end():
                    raise RuntimeError("the collective was broken off")
            except RuntimeError as error:
                self._contact.look_at(error)
                if not self._contact.lost():
                    raise
                self._recover(error)
                for tensor, content in zip(tensors, before, strict=True):
                    tensor.copy_(content)
                continue
            self._tail.keep(tensors if name in _ALIKE else None)
            break
        return _Completed(tensors)

    def _go_if_abandoned(self) -> None:
        if self._status.abandoned:
            raise RuntimeError("the generation was abandoned")

    def _recover(self, error: RuntimeError) -> None:
        self._contact.await_word(f"between steps: {type(error).__name__}: {error}")
        self._tail.waiting = True
        try:
            self._recovery.recover()
        finally:
            self._tail.waiting = False
        self._status.go_on_between_steps()


class _Completed(dist.Work):
    """What a script that asked for `async_op=True` gets; it has ended already."""

    def __init__(self, tensors: _Tensors) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        return True

    def is_completed(self) -> bool:
        return True

    def result(self) -> _Tensors:
        return self._tensors


def _tensors_in(arguments: Iterable[Any]) -> _Tensors:
    """In one order. A method of a group is given first the tensors into which it writes."""
    found: _Tensors = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, Sequence) and not isinstance(argument, str | bytes):
            found.extend(_tensors_in(argument))
    return found


def _line_of_script(frame: FrameType | None) -> str | None:
    """The caller behind torch. None if it is this package."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if any(file.is_relative_to(folder) for folder in _OWN):
            return None
        if not file.is_relative_to(_TORCH):
            return f"{file.name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
