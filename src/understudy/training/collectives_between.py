"""Says it once when the script communicates between steps, and where.

Inside of `with step:` a rank that is lost is replaced, whatever the others were waiting for. Between steps a collective
that is cut short raises in the script, and there is nothing to run again. Evaluations usually do this, so that a person
should hear of it in the first epoch and not when a rank is lost there.
"""

import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.distributed import ProcessGroup

_METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "send", "recv", "gather", "scatter"),
    *("allgather", "_allgather_base", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single", "gather_single"),
)
_TORCH, _OWN = Path(torch.__file__).parent, Path(__file__).parent.parent


def tell_of_collectives_between_steps(between_steps: Callable[[], bool], note: Callable[[str], None]) -> None:
    """From now on, for this process; engines that communicate below Python do not pass here."""
    told = threading.Event()

    def before(name: str) -> None:
        if told.is_set() or not between_steps() or threading.current_thread() is not threading.main_thread():
            return
        if (line := _line_of_script(sys._getframe(2))) is not None:
            told.set()
            note(
                f"the script communicates between steps ({name.strip('_')}, called from {line}). A rank that is lost "
                "while others wait for it there cannot be replaced: put it into a `with step:`, before the optimizer"
            )

    for name in _METHODS:
        setattr(ProcessGroup, name, _announced(getattr(ProcessGroup, name), name, before))


def _announced(method: Callable[..., Any], name: str, before: Callable[[str], None]) -> Callable[..., Any]:
    @wraps(method)
    def announced(*args: Any, **kwargs: Any) -> Any:
        before(name)
        return method(*args, **kwargs)

    return announced


def _line_of_script(frame: FrameType | None) -> str | None:
    """Who called, behind torch. None if we did."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_OWN) and "faults" not in file.parts:  # the faults' scripts stand for users'
            return None
        if not file.is_relative_to(_TORCH):
            return f"{file.name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
