"""Writes files in the background: a writer never waits for a disk, and no trouble with one reaches it.

Each file has a thread of its own, so that one that blocks for ever holds up no other, and a bounded queue: what does
not fit is dropped and counted, and the file says where. Used by the launcher, agents and coordinators for the ledger
of decisions, the audit, the output of ranks and stacks.
"""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from understudy.files.append_file import AppendFile, Gap
from understudy.files.private import make_private_folder, write_private
from understudy.files.troubles import DiskTroubles

MOST = 4 << 20  # bytes that wait for one file
_CHUNK = 1 << 18  # bytes that are written at once
_RETRY = 1.0  # seconds between two attempts to write
_MARK_TIMEOUT = 0.5  # seconds, at the end of a job
_LOOK = 0.005  # seconds between two looks at whether everything is written
_A_MOMENT = 0.5  # seconds
_LAST_ATTEMPTS = 2.5  # seconds after which files that fail and fail again are not waited for


async def until_written(
    unwritten: Callable[[], Sequence[AppendFile]], seconds: float, enough: Callable[[], bool] = lambda: False
) -> None:
    """Wait until nothing is left to be written: for so many seconds, or until it is `enough` (a disk that works gets
    the moment that it needs), or until every file of which something is left has failed again."""
    began = time.monotonic()
    while (left := unwritten()) and (waited := time.monotonic() - began) < seconds:
        if waited > _A_MOMENT and enough():
            return
        if waited > _LAST_ATTEMPTS and all(file.is_failing for file in left):
            return
        await asyncio.sleep(_LOOK)


class BackgroundFile:
    """`write` takes whole entries (lines, or what a rank printed) and keeps their order."""

    def __init__(self, file: AppendFile, most: int = MOST) -> None:
        self.file, self._most = file, most
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0  # entries that were dropped since the last one that was taken
        self._thread: threading.Thread | None = None
        self._writing: tuple[bytes, int] = (b"", 0)  # the chunk that is being written, and how many entries it has

    def write(self, data: bytes) -> None:
        """Never waits, never fails."""
        with self._changed:
            if self._lost and self._bytes <= self._most // 2:
                self._say_what_was_lost()
            if self._lost or self._bytes + len(data) > self._most:
                self._lost += 1
                if self._lost == 1:
                    self.file.lose()
                return
            self._take(data)
            self._changed.notify_all()

    @property
    def unwritten(self) -> int:
        """Entries that are not in the file yet."""
        with self._changed:
            return len(self._waiting) + self._lost

    def give_up(self) -> str:
        """The job is over. Says what is missing."""
        self.file.lose(patience=_MARK_TIMEOUT)
        why = self.file.trouble or "there was not enough time"
        return f"{self.file.path}: {self.unwritten} entries ({why})"

    # -- inside -------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        self._waiting.append(data)
        self._bytes += len(data)
        if self._thread is None:
            name = f"understudy-write-{self.file.path.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _say_what_was_lost(self) -> None:
        why = self.file.trouble or "the disk was slower than what was to be written"
        lost, self._lost = self._lost, 0
        self._take(self.file.gap(why, lost))

    def _run(self) -> None:
        while True:
            if self.file.append(self._next()):
                self._written()
            else:
                time.sleep(_RETRY)

    def _next(self) -> bytes:
        """As many entries as make a chunk; after a failure the same ones again."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            if not self._writing[1]:
                sizes = itertools.accumulate(map(len, self._waiting))
                count = max(1, sum(1 for _ in itertools.takewhile(lambda size: size <= _CHUNK, sizes)))
                self._writing = b"".join(itertools.islice(self._waiting, count)), count
            return self._writing[0]

    def _written(self) -> None:
        with self._changed:
            chunk, count = self._writing
            for _ in range(count):
                self._waiting.popleft()
            self._bytes -= len(chunk)
            self._writing = (b"", 0)
            if self._lost and not self._waiting:
                self._say_what_was_lost()


class BackgroundFiles:
    """All files that one process writes in the background. One for each path, for as long as the process lives: the
    successor of a rank goes on in the file of its predecessor."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.troubles = DiskTroubles(say)
        self._files: dict[Path, BackgroundFile] = {}

    def open(
        self,
        path: Path,
        *,
        gap: Gap,
        place: Path | None = None,
        whole_lines: bool = False,
        mark: Path | None = None,
        remade: Callable[[], object] = lambda: None,
        most: int = MOST,
    ) -> BackgroundFile:
        """The parameters are those of `AppendFile`. The file itself is opened when something is written."""
        if path not in self._files:
            file = AppendFile(
                path,
                gap=gap,
                listener=self.troubles,
                place=place,
                whole_lines=whole_lines,
                mark=mark,
                remade=remade,
            )
            self.troubles.watch(file)
            self._files[path] = BackgroundFile(file, most)
        return self._files[path]

    def write_once(self, path: Path, text: str, then: Callable[[str | None], None]) -> None:
        """A whole file at once. `then` hears in the loop what went wrong, or None."""
        loop = asyncio.get_running_loop()

        def write() -> None:
            trouble = None
            try:
                make_private_folder(path.parent)
                write_private(path, text.encode())
            except OSError as error:
                trouble = error.strerror or str(error)
            try:
                loop.call_soon_threadsafe(then, trouble)
            except RuntimeError:
                return  # the job has ended meanwhile

        threading.Thread(target=write, name=f"understudy-write-{path.name}", daemon=True).start()

    async def drain(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> list[str]:
        """Wait (`until_written`). Returns what is missing."""
        await until_written(lambda: [each.file for each in self._unwritten()], seconds, enough)
        return [each.give_up() for each in self._unwritten()]

    def _unwritten(self) -> list[BackgroundFile]:
        return [each for each in self._files.values() if each.unwritten]

    def close(self) -> None:
        """Nothing is watched any more. Threads that still wait for a disk end with the process."""
        self.troubles.close()
