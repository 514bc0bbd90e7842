"""A page of shared memory through which a worker shows its progress at no cost.

The worker writes a few numbers into a mapped file at every step; the agent reads them when it likes. There is no
message, no lock and no system call on the training path. A reader may see a half-written page: it only ever compares
pages with each other, so that costs at most one wrong look.

Behind the place stands what the steps cost: the sum of all, and the last ones one by one, each in the slot of its step
number. So the same step of different ranks can be compared, and something that hit all of them cancels out.
"""

import enum
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

_PAGE = struct.Struct("<QqqdQ")
_COMPUTE = struct.Struct("<dQq")  # seconds of all measured steps, how many they are, number of the last one
KEPT_STEPS = 64  # so many of the last steps can be read one by one
_SECONDS = struct.Struct("<d")
_ALL_SECONDS = struct.Struct(f"<{KEPT_STEPS}d")
_COMPUTE_AT = _PAGE.size
_SECONDS_AT = _COMPUTE_AT + _COMPUTE.size
SIZE = _SECONDS_AT + _ALL_SECONDS.size


class Place(enum.IntEnum):
    """Where in its life a worker is."""

    STARTING = 0
    PARKED = 1
    SETUP = 2
    IN_STEP = 3
    BETWEEN_STEPS = 4
    RECOVERING = 5
    FINISHED = 6
    RELEASED = 7  # what the script does now is its own affair


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds that a rank computed, without its waiting for others. `recent`: by step number, the last ones."""

    seconds: float = 0.0
    steps: int = 0
    last_step: int = -1
    recent: Mapping[int, float] = field(default_factory=dict)


NOTHING_COMPUTED = Compute()


@dataclass(frozen=True, slots=True)
class Progress:
    """`count` grows with every change, so equal pages mean no progress. `at` is the host's monotonic clock."""

    count: int
    generation: int
    step: int
    at: float
    place: Place
    compute: Compute = NOTHING_COMPUTED


def _allocate(descriptor: int) -> None:
    """Give the page its memory now. To run out of it later, in the middle of a step, would be a SIGBUS."""
    os.posix_fallocate(descriptor, 0, SIZE)


class ProgressWriter:
    """The worker's side."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _allocate(self._file)
        self._page = mmap.mmap(self._file, SIZE)
        self._count = 0
        self._computed_seconds, self._computed_steps = 0.0, 0

    def show(self, generation: int, step: int, place: Place) -> None:
        self._count += 1
        _PAGE.pack_into(self._page, 0, self._count, generation, step, time.monotonic(), place)

    def show_compute(self, step: int, seconds: float) -> None:
        """One attempt at `step` took so long without its waits."""
        self._computed_seconds += seconds
        self._computed_steps += 1
        _SECONDS.pack_into(self._page, _SECONDS_AT + _SECONDS.size * (step % KEPT_STEPS), seconds)
        _COMPUTE.pack_into(self._page, _COMPUTE_AT, self._computed_seconds, self._computed_steps, step)


class ProgressReader:
    """The agent's side; creates the page, so that it can be read before the worker has started."""

    def __init__(self, path: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(descriptor)
            self._page = mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def look(self) -> Progress:
        count, generation, step, at, place = _PAGE.unpack_from(self._page, 0)
        return Progress(count, generation, step, at, Place(min(place, max(Place))), self._look_at_compute())

    def _look_at_compute(self) -> Compute:
        seconds, steps, last = _COMPUTE.unpack_from(self._page, _COMPUTE_AT)
        if steps == 0 or last < 0:
            return NOTHING_COMPUTED
        slots = _ALL_SECONDS.unpack_from(self._page, _SECONDS_AT)
        first = max(0, last + 1 - min(steps, KEPT_STEPS))
        turn = first % KEPT_STEPS
        recent = dict(zip(range(first, last + 1), slots[turn:] + slots[:turn], strict=False))
        if not min(recent.values()) > 0:  # a step ran twice, so there is one slot less than steps
            recent = {step: taken for step, taken in recent.items() if taken > 0}
        return Compute(seconds, steps, last, recent)

    def release(self) -> None:
        """Stop looking; the page stays for others."""
        self._page.close()

    def close(self) -> None:
        self._page.close()
        if os.path.exists(self._path):
            os.unlink(self._path)

    def __enter__(self) -> "ProgressReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
