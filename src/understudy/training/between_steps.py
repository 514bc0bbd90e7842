"""Collectives between two steps, such as those of an evaluation: a rank that is lost there is replaced like any other.

The script's own code cannot be run again. So whoever is cut short in a collective recovers in its place, and then
issues the same collective again. Collectives are counted since the last commit, and their results are kept: a rank that
lacks some, because others were further or because it has just joined, is told them instead of taking part. When the
world goes back to an earlier step there is nobody to issue them with; the results are not numbers then, which is said,
and the script comes back to its loop.

Only collectives of the default group whose result is the same on all ranks can be told to others. Others are said to be
unknown to who lacks them. Engines that communicate below Python do not pass here, and neither do sends to one rank.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from understudy.protocol.commands import Tail

if TYPE_CHECKING:
    from understudy.training.member import Member

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
_MOST_KEPT = 64 << 20
"""Bytes of results since the last commit; what is more is not kept."""

_TORCH = Path(torch.__file__).parent
_OWN = tuple(Path(__file__).parent.parent / name for name in ("training", "groups", "state"))
"""Where this package communicates by itself. Scripts that come with it (benchmark, faults) are like any other."""

_Tensors = list[torch.Tensor]


class Result(msgspec.Struct, frozen=True):
    """What a collective left in the tensors that it was given, one after another; None if that is not known."""

    tensors: list[bytes] | None


class BetweenSteps:
    """Of one member; used by its main thread. `done`: collectives that were completed since the last commit."""

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._told = False
        self.waiting = False
        self._results: list[Result] = []
        self._kept = 0
        self._foretold: deque[Result] = deque()
        self._void = False

    @property
    def done(self) -> int:
        return len(self._results)

    def begin(self) -> None:
        """A step was committed: what follows is counted anew."""
        self._results, self._kept, self._void = [], 0, False
        self._foretold.clear()

    def begin_step(self) -> None:
        """The script has come back to its loop."""
        self._void = False
        if self._foretold:
            self._member.note(
                f"the script issued {len(self._foretold)} collectives less between steps than other ranks did"
            )
            self._foretold.clear()

    # -- a recovery ---------------------------------------------------------------------------------------------------

    def exchange(self, tail: Tail | None, received: bool) -> None:
        """After the transfer: results go to those who lack some. `received`: this rank has got its state as well, so
        that what it had counted belongs to the past."""
        if received:
            self.begin()
        if tail is None:
            self._void = self.waiting
            return
        mail, rank = self._member.mail, self._member.world.rank
        if rank == tail.donor:
            content = msgspec.msgpack.encode(self._results[: tail.done])
            for lacking in tail.lacking:
                mail.post_text(content, lacking)
            for lacking in tail.lacking:
                mail.hear_answer(lacking, under_way=0)
        elif rank in tail.lacking:
            told = msgspec.msgpack.decode(mail.receive_text(tail.donor), type=list[Result])
            mail.answer(tail.donor)
            self._foretold = deque(told[self.done :])

    # -- a collective -------------------------------------------------------------------------------------------------

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
        if not self._member.between_steps or threading.current_thread() is not threading.main_thread():
            return None
        return _line_of_script(sys._getframe(2))

    def _tell(self, name: str, line: str) -> None:
        if not self._told:
            self._told = True
            self._member.note(
                f"the script communicates between steps ({name.strip('_')}, called from {line}). If a rank is lost "
                "there, the others wait in their places for its replacement, which does what comes after the step "
                "with a model of the right state, but with what the body of a rehearsal has computed"
            )

    def _perform(self, issue: Callable[[], Any], name: str, tensors: _Tensors) -> "_Completed":
        before = [tensor.clone() for tensor in tensors]
        while not self._foresee(tensors):
            try:
                self._go_if_abandoned()
                work = issue()
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                if not self._member.lost_contact():
                    raise
                self._recover(error)
                for tensor, content in zip(tensors, before, strict=True):
                    tensor.copy_(content)
                continue
            self._keep(tensors if name in _ALIKE else None)
            break
        return _Completed(tensors)

    def _go_if_abandoned(self) -> None:
        if self._member.abandoned:
            raise RuntimeError("the generation was abandoned")

    def _foresee(self, tensors: _Tensors) -> bool:
        """Is the result known without communicating?"""
        if self._void:
            self._fill(tensors, Result(None))
            return True
        if not self._foretold:
            return False
        result = self._foretold.popleft()
        self._fill(tensors, result)
        self._results.append(result)
        return True

    def _fill(self, tensors: _Tensors, result: Result) -> None:
        fits = result.tensors is not None and [len(part) for part in result.tensors] == [t.nbytes for t in tensors]
        if not fits:
            self._member.note(
                "a result of communication between steps is not known to this rank: floating-point numbers in it are "
                "NaN" + (", because the world has gone back to an earlier step" if self._void else "")
            )
        with torch.no_grad():
            for place, tensor in enumerate(tensors):
                if fits and result.tensors is not None:
                    _write(tensor, result.tensors[place])
                elif tensor.is_floating_point():
                    tensor.fill_(float("nan"))

    def _keep(self, tensors: _Tensors | None) -> None:
        size = sum(tensor.nbytes for tensor in tensors or ())
        if tensors is None or self._kept + size > _MOST_KEPT:
            self._results.append(Result(None))
            return
        self._kept += size
        self._results.append(Result([_read(tensor) for tensor in tensors]))

    def _recover(self, error: RuntimeError) -> None:
        member = self._member
        member.await_word(f"between steps: {type(error).__name__}: {error}")
        self.waiting = True
        try:
            member.recover()
        finally:
            self.waiting = False
        member.go_on_between_steps()


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


def _read(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _write(tensor: torch.Tensor, content: bytes) -> None:
    if content:
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(tensor.dtype)
        tensor.copy_(flat.reshape(tensor.shape))


def _line_of_script(frame: FrameType | None) -> str | None:
    """Who called, behind torch. None if we did."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if any(file.is_relative_to(folder) for folder in _OWN):
            return None
        if not file.is_relative_to(_TORCH):
            return f"{file.name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
