"""A page of shared memory through which a worker shows its progress at no cost.

The worker writes a few numbers into a mapped file at every step; the agent reads them when it likes. There is no
message, no lock and no system call on the training path. A reader may see a half-written page: it only ever compares
pages with each other, so that costs at most one wrong look.
"""

import enum
import mmap
import os
import struct
import time
from dataclasses import dataclass
from types import TracebackType

_PAGE = struct.Struct("<QqqdQ")
SIZE = _PAGE.size


class Place(enum.IntEnum):
    """Where in its life a worker is."""

    STARTING = 0
    PARKED = 1
    SETUP = 2
    IN_STEP = 3
    BETWEEN_STEPS = 4
    RECOVERING = 5
    FINISHED = 6


@dataclass(frozen=True, slots=True)
class Progress:
    """`count` grows with every change, so equal pages mean no progress. `at` is the host's monotonic clock."""

    count: int
    generation: int
    step: int
    at: float
    place: Place


class ProgressWriter:
    """The worker's side."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, SIZE)
        self._page = mmap.mmap(self._file, SIZE)
        self._count = 0

    def show(self, generation: int, step: int, place: Place) -> None:
        self._count += 1
        _PAGE.pack_into(self._page, 0, self._count, generation, step, time.monotonic(), place)


class ProgressReader:
    """The agent's side; creates the page, so that it can be read before the worker has started."""

    def __init__(self, path: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            self._page = mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)

    def look(self) -> Progress:
        count, generation, step, at, place = _PAGE.unpack_from(self._page, 0)
        return Progress(count, generation, step, at, Place(min(place, max(Place))))

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
