"""Where step records lie between a worker's commit and the disk: in shared memory, beside its progress page.

A worker appends one record with one system call and never waits for a disk; what it appended survives its death. Its
agent moves the lines to the run's folder (`agent.spool_mover`) and gives the memory back: the spool is a row of small
files, and one that was moved in full is removed.

Knows: both ends of a spool. Does not know: where the lines go.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from understudy.ledger.writing import gap_line, line_of

PART = 1 << 20  # bytes after which the next file is begun
MOST_PARTS = 16  # of one member, waiting for a disk that takes nothing
_CHUNK = 1 << 18


def part_of(folder: Path, member: str, number: int) -> Path:
    return folder / f"steps-{member}-{number}"


def _mark(folder: Path, member: str) -> Path:
    """An empty file: not every record of this member found room."""
    return folder / f"steps-{member}-incomplete"


class SpoolWriter:
    """The worker's end. `say` is told once when there is no room; training goes on without a record then."""

    def __init__(self, folder: str, member: str, say: Callable[[str], None], part: int = PART) -> None:
        self._folder, self._member, self._say, self._part = Path(folder), member, say, part
        self._descriptor = -1
        self._number = -1
        self._size = part  # so that the first record begins the first file
        self._lost = 0
        self._why = ""
        self._torn = False  # the last line is unfinished
        self._said = False

    def append(self, record: msgspec.Struct) -> None:
        """One system call. Never raises."""
        line = line_of(record)
        if self._lost:
            line = (b"\n" if self._torn else b"") + gap_line(self._why, self._lost) + line
        try:
            if self._size >= self._part and not self._torn:
                self._begin_next()
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        self._size += written
        if written < len(line):
            self._torn = True
            self._lose("no room is left in shared memory")
        else:
            self._lost, self._torn = 0, False

    def _begin_next(self) -> None:
        number = self._number + 1
        if number >= MOST_PARTS and part_of(self._folder, self._member, number - MOST_PARTS).exists():
            raise OSError(0, f"the disk under --run-dir has taken nothing for {MOST_PARTS} files of records")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(part_of(self._folder, self._member, number), flags, 0o600)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._number, self._size = descriptor, number, 0

    def _lose(self, why: str) -> None:
        self._lost += 1
        self._why = why
        if self._said:
            return
        self._said = True
        with contextlib.suppress(OSError):  # it is said, and a gap record will follow if there is room again
            os.close(os.open(_mark(self._folder, self._member), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._say(f"steps of {self._member} are missing from the ledger from now on: {why}. Training goes on")


class Spool:
    """The agent's end: what is still to be moved."""

    def __init__(self, folder: Path, member: str) -> None:
        self._folder, self._member = folder, member
        self._descriptor = -1
        self._number = 0
        self._position = 0

    def peek(self, writer_is_gone: bool = False) -> bytes:
        """The next whole lines; empty when there are none. A line that a dead writer left unfinished comes as well."""
        while True:
            followed = part_of(self._folder, self._member, self._number + 1).exists()  # then this one is whole
            data = self._read()
            end = data.rfind(b"\n") + 1
            if end:
                return data[:end]
            if not followed:
                return data if writer_is_gone else b""
            self._go_on()

    def taken(self, count: int) -> None:
        self._position += count

    @property
    def lacks_records(self) -> bool:
        """Did the writer find no room for some?"""
        return _mark(self._folder, self._member).exists()

    def remove(self) -> None:
        """Everything that is left of it."""
        self._close()
        for file in self._folder.glob(f"steps-{self._member}-*"):
            file.unlink(missing_ok=True)

    def _read(self) -> bytes:
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""  # nothing was written yet
        return os.pread(self._descriptor, _CHUNK, self._position)

    @property
    def _path(self) -> Path:
        return part_of(self._folder, self._member, self._number)

    def _go_on(self) -> None:
        """All of this file is moved, and its writer is in the next one."""
        self._close()
        self._path.unlink(missing_ok=True)
        self._number, self._position = self._number + 1, 0

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
