"""The fence between ranks of one host: all have arrived before any passes, through shared memory.

A barrier over gloo costs eight small messages and a dozen thread switches per step. Ranks on one host need none of it:
each writes the step it has arrived at into its own slot of a mapped page, and a futex wakes the ranks that wait.
Every generation has a page of its own, so a process of an old one can never be counted in a new one.

A rank that reports `arrived=False` never wrote its slot for the place before the change, so no rank has passed there:
the commit rule needs no more.
Where there is no such futex, or no shared memory for the page, all ranks use a group's barrier; it keeps the same
promise. A rank whose device runs behind its host arrives when that does (`device_fence`).
"""

import contextlib
import ctypes
import mmap
import os
import platform
from collections.abc import Callable, Collection
from typing import Protocol

import torch.distributed as dist

from understudy.foundation.ids import Generation, StepNumber

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}  # of the system call
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_LOOK_AGAIN_EVERY = 5_000_000
"""Nanoseconds between two looks at whether contact is lost. Also ends a wait whose waker came too early."""

_SLOT = 8
_NEVER_AWAITED = 2**64 - 1  # later than any step
_PLACE_BITS = 16  # meetings of one step
KEPT, BEFORE_CHANGE, AFTER_STEP = 0, 1, 2
"""Places of a step at which ranks meet. Sections after the step come last, from `AFTER_STEP` on."""


class _Span(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None)
_patience = _Span(0, _LOOK_AGAIN_EVERY)


def shared_memory_works() -> bool:
    return platform.system() == "Linux" and platform.machine() in _FUTEX_NUMBER


class NoMemory(Exception):
    """The first rank that came found no shared memory for the page. All ranks see that, and none of them uses it."""


def _open_page(path: str, rank: int, length: int) -> int:
    """The same file for all ranks: a page with all its memory, or an empty one that says that there was none. To run
    out of memory later, in the middle of a step, would be a SIGBUS."""
    while True:
        if not os.path.exists(path):
            mine = f"{path}.{rank}"
            descriptor = os.open(mine, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _allocate(descriptor, length)
                with contextlib.suppress(FileExistsError):  # another rank was faster
                    os.link(mine, path)
            finally:
                os.close(descriptor)
                os.unlink(mine)
        with contextlib.suppress(FileNotFoundError):  # another rank is in the next generation already
            return os.open(path, os.O_RDWR)


def _allocate(descriptor: int, length: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError:
        os.ftruncate(descriptor, 0)


class SharedFence:
    """The page of one generation; `NoMemory` when there is none. `lost_contact` says that waiting is pointless."""

    def __init__(self, folder: str, generation: Generation, rank: int, size: int, absent: Collection[int] = ()) -> None:
        self.path = os.path.join(folder, f"fence-{generation}")
        length = _SLOT * (size + 1)
        descriptor = _open_page(self.path, rank, length)
        try:
            if os.fstat(descriptor).st_size < length:
                raise NoMemory(f"there was no shared memory for {self.path}")
            self._page = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        slots = memoryview(self._page).cast("Q")
        self._rank, self._slots = rank, slots[1 : size + 1]
        for other in absent:  # all ranks say so, and none waits for them
            self._slots[other] = _NEVER_AWAITED
        self._word = ctypes.c_uint32.from_buffer(self._page, 0)  # the last step that all have arrived at
        self._futex_number = _FUTEX_NUMBER[platform.machine()]

    def meet(self, step: StepNumber, lost_contact: Callable[[], bool], place: int = BEFORE_CHANGE) -> None:
        """Arrive, and return when all have arrived. RuntimeError when contact is lost before that is seen."""
        arrived = ((step + 1) << _PLACE_BITS) + place  # a new page is all zeros
        self._slots[self._rank] = arrived
        while True:
            seen = self._word.value
            if min(self._slots) >= arrived:
                if seen != arrived & 0xFFFFFFFF:
                    self._word.value = arrived & 0xFFFFFFFF
                    self._futex(_WAKE, _ALL)
                return
            if lost_contact():
                raise RuntimeError(f"contact was lost at the fence of step {step}")
            self._futex(_WAIT, seen)

    def _futex(self, operation: int, value: int) -> None:
        _libc.syscall(
            ctypes.c_long(self._futex_number),
            ctypes.byref(self._word),
            ctypes.c_int(operation),
            ctypes.c_uint32(value),
            ctypes.byref(_patience) if operation == _WAIT else None,
            None,
            ctypes.c_uint32(0),
        )

    def remove(self) -> None:
        """Take the name away; a rank that still waits keeps the page."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return  # another rank was faster


class GroupFence:
    """A group's barrier. A lost rank breaks its connections, and then it raises RuntimeError."""

    def __init__(self, barrier: Callable[[], object] = dist.barrier) -> None:
        self._barrier = barrier

    def meet(self, _step: StepNumber, _lost_contact: Callable[[], bool], _place: int = BEFORE_CHANGE) -> None:
        self._barrier()

    def remove(self) -> None:
        return


Fence = SharedFence | GroupFence


class Meeting(Protocol):
    """What all fences have in common."""

    def meet(self, step: StepNumber, lost_contact: Callable[[], bool], place: int = ..., /) -> None: ...

    def remove(self) -> None: ...


class Fences:
    """The fence of the generation that this process is in. `barrier`: of the group where no page is shared. `behind`:
    what a device that runs behind its host puts in front of the fence (`device_fence`)."""

    def __init__(
        self,
        folder: str,
        rank: int,
        size: int,
        one_host: bool = True,
        barrier: Callable[[], object] = dist.barrier,
        behind: Callable[[Fence], Meeting] | None = None,
    ) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._shared = one_host and shared_memory_works()
        self._barrier, self._behind = barrier, behind
        self._generation: Generation | None = None
        self._fence = self._in_front(GroupFence(barrier))
        self.absent: Collection[int] = ()  # ranks that the present generation does without

    def of(self, generation: Generation) -> Meeting:
        if generation != self._generation:
            self._fence.remove()
            self._generation = generation
            if self._shared:
                self._fence = self._in_front(self._make(generation))
        return self._fence

    def _in_front(self, fence: Fence) -> Meeting:
        return fence if self._behind is None else self._behind(fence)

    def _make(self, generation: Generation) -> Fence:
        try:
            return SharedFence(self._folder, generation, self._rank, self._size, self.absent)
        except NoMemory:
            return GroupFence(self._barrier)
