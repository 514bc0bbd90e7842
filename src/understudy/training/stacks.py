"""What every thread of this process is doing, for a person who looks for a hang. Called by the control thread."""

import sys
import threading
from types import FrameType

from understudy.wire.messages import Frame, Stacks, ThreadStack

_THREADS, _FRAMES, _TEXT = 32, 60, 300  # at most: with paths cut to this length an answer stays well below a megabyte


def all_stacks(number: int, in_gradient_wait: bool) -> Stacks:
    """The main thread first, and not the thread that asks."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    others = [ident for ident in frames if ident not in (main, threading.get_ident())]
    shown = [*([main] if main in frames else []), *others][:_THREADS]
    return Stacks(
        number=number,
        threads=[
            ThreadStack(name=names.get(ident, f"thread {ident}")[:_TEXT], frames=_frames_of(frames[ident]))
            for ident in shown
            if ident is not None
        ],
        in_gradient_wait=in_gradient_wait,
    )


def _frames_of(innermost: FrameType | None) -> list[Frame]:
    found: list[Frame] = []
    frame = innermost
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        found.append(Frame(file=code.co_filename[-_TEXT:], line=frame.f_lineno or 0, function=code.co_name[:_TEXT]))
        frame = frame.f_back
    return found
