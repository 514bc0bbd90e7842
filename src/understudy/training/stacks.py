"""What this process is doing, for its agent and for an operator in search of a hang. Called by the control thread."""

import os
import sys
import threading
import time
from types import FrameType

from understudy.detection.stacks import is_waiting, place_of
from understudy.wire.messages import ActivityReport, Frame, Stacks, ThreadStack

_THREADS, _FRAMES, _TEXT = 32, 60, 300  # at most: with paths cut to this length an answer stays well below a megabyte
_CLOCK_TICK = os.sysconf("SC_CLK_TCK")


def activity(number: int, step: int, heard: int, in_gradient_wait: bool) -> ActivityReport:
    """What the main thread does now, in one phrase; and what changes if it does anything at all."""
    main = threading.main_thread().ident
    frames = _frames_of(sys._current_frames().get(main or 0))
    return ActivityReport(
        number=number,
        waiting=is_waiting(frames, in_gradient_wait),
        where=place_of(frames, step=step, in_gradient_wait=in_gradient_wait)[:_TEXT],
        stack=hash(tuple((frame.file, frame.line, frame.function) for frame in frames)),
        cpu=time.process_time() + _cpu_of_children(),
        control_thread=threading.get_native_id(),
        heard=heard,
    )


def _cpu_of_children() -> float:
    """Seconds that living children have used: a compiler, or workers of a loader, may do the work."""
    ticks = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                ticks += sum(_ticks_of(child) for child in file.read().split())
    except OSError:
        return 0.0
    return ticks / _CLOCK_TICK


def _ticks_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


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
