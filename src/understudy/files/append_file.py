"""Appends to one file in spite of trouble with its disk.

Knows: one path, what is in the file so far, and how to go on after a write that failed half-way, a file that was
removed, or a line that a dead writer left unfinished. Does not know: threads and queues. It waits as long as the disk
does, so it is called from threads for which nothing waits (`background`, and the agent's spool mover).
"""

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from understudy.files.private import FILE_MODE, make_private_folder

_REOPEN = (errno.ESTALE, errno.EBADF, errno.ENODEV, errno.ENXIO)
"""The descriptor is of no use any more; the file behind the path may be."""
_REMOVED = "it was removed while it was written"


class Gap(Protocol):
    """Makes the line that stands where something is missing. `lost`: how many entries, if they were counted."""

    def __call__(self, why: str, lost: int = 0, /) -> bytes: ...


class Listener(Protocol):
    """Is told when writing stops to work and when it works again. Called from any thread."""

    def began(self, file: "AppendFile", why: str) -> None: ...

    def ended(self, file: "AppendFile") -> None: ...


class AppendFile:
    """One file with one writer. `place`: the folder that is named when there is trouble. `whole_lines`: a line that a
    former writer left unfinished is ended, with a gap behind it. `mark`: an empty file that is there while not
    everything could be written, and stays if something is lost. `remade`: called when the folder had to be made."""

    def __init__(
        self,
        path: Path,
        *,
        gap: Gap,
        listener: Listener,
        place: Path | None = None,
        whole_lines: bool = False,
        mark: Path | None = None,
        remade: Callable[[], object] = lambda: None,
    ) -> None:
        self.path, self.place, self.gap = path, place or path.parent, gap
        self.trouble: str | None = None
        self.lossy = False  # something is missing from it for good
        self.waiting_since: float | None = None  # the disk has not answered since then
        self._listener, self._whole_lines, self._mark, self._remade = listener, whole_lines, mark, remade
        self._failing = threading.Lock()  # never held while the disk is asked for something
        self._descriptor = -1
        self._size: int | None = None  # what the file should have, once it was open
        self._done = 0  # bytes of the present chunk that are in the file
        self._owed = b""  # must be written before it

    @property
    def is_failing(self) -> bool:
        """The last attempt came back with an error, and did not just take long."""
        return self.trouble is not None and self.waiting_since is None

    # -- what its thread calls ----------------------------------------------------------------------------------------

    def append(self, chunk: bytes) -> bool:
        """True when all of `chunk` is in the file. If not, call it again with the same chunk, or one that begins with
        it: what is there of it is not written twice. Never raises; blocks as long as the disk does."""
        self.waiting_since = time.monotonic()
        try:
            self._write(chunk)
        except OSError as error:
            if error.errno in _REOPEN:
                self.close()
            self.waiting_since = None
            self.fail(error.strerror or str(error))
            return False
        self.waiting_since = None
        self._done = 0
        self._succeed()
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def fail(self, why: str) -> None:
        """Writing does not work. Also called from outside, when the disk does not answer."""
        with self._failing:
            first, self.trouble = self.trouble is None, why
        if first:
            self._listener.began(self, why)
            self.mark_incomplete()

    def lose(self, patience: float = 0.0) -> None:
        """Something will never be in this file. `patience`: seconds that the mark may take."""
        self.lossy = True
        self.mark_incomplete(patience)

    def mark_incomplete(self, patience: float = 0.0) -> None:
        """As well as it goes, and in a thread: the mark is on the same disk."""
        if self._mark is not None:
            marking = threading.Thread(target=self._set_mark, name="understudy-mark", daemon=True)
            marking.start()
            marking.join(patience)

    def _set_mark(self) -> None:
        assert self._mark is not None
        try:
            os.close(os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            if self.trouble is None and not self.lossy:  # it was over by the time that the disk did this
                self._mark.unlink(missing_ok=True)
        except OSError:
            return

    def _succeed(self) -> None:
        with self._failing:
            trouble, self.trouble = self.trouble, None
        if trouble is None:
            return
        if self._mark is not None and not self.lossy:
            try:
                self._mark.unlink(missing_ok=True)
            except OSError:
                self.lossy = True  # the difference could not be told any more
        if self.lossy:
            self.mark_incomplete()
        self._listener.ended(self)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, chunk: bytes) -> None:
        self._make_sure_it_is_there(chunk)
        while self._owed:
            self._owed = self._owed[self._put(self._owed) :]
        rest = memoryview(chunk)
        while self._done < len(chunk):
            self._done += self._put(rest[self._done :])

    def _put(self, data: bytes | memoryview) -> int:
        written = os.write(self._descriptor, data)
        self._size = (self._size or 0) + written
        return written

    def _make_sure_it_is_there(self, chunk: bytes) -> None:
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:
            self.close()
            self._size, self._done = None, 0
            self.lossy = True
            self._owed = self.gap(_REMOVED)
            self.fail(_REMOVED)
        if self._descriptor >= 0:
            return
        self._open()
        found = os.fstat(self._descriptor)
        if self._size is not None and found.st_size != self._size:
            self._done = chunk.find(b"\n", self._done - 1) + 1 if self._done else 0  # that line cannot be mended
            self._owed = b"\n" + self.gap("the file was another one after an error")
            self.lossy = True
        elif self._size is None and self._whole_lines and self._is_unfinished(found):
            self._owed = b"\n" + self.gap("its former writer ended in the middle of a line")
        self._size = found.st_size

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags, FILE_MODE)
        except FileNotFoundError:
            make_private_folder(self.path.parent)
            self._descriptor = os.open(self.path, flags, FILE_MODE)
            self._remade()

    def _is_unfinished(self, found: os.stat_result) -> bool:
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
