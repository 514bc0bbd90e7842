"""Says once per folder that its files cannot be written, and once that they can again.

Knows: which files are in trouble now, and which wait for a disk that does not answer. Writers tell it from their
threads; what is said is said in the loop.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from understudy.files.append_file import AppendFile

SLOW = 5.0  # seconds after which a write counts as trouble, though it may still succeed
_LOOK_EVERY = 1.0
_SAY_AGAIN_AFTER = 60.0  # a disk that is full now and then is not worth a line each time


@dataclass(slots=True)
class _Place:
    """One folder. `files`: those in trouble now, and why."""

    files: dict[Path, str] = field(default_factory=dict)
    told: bool = False  # of the present trouble
    told_at: float = float("-inf")
    lossy: bool = False  # something was lost in the present trouble


class DiskTroubles:
    """`say`: to the operator of the job. Made inside a running loop, it also watches for writes that do not return."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._places: dict[Path, _Place] = {}
        self._files: list[AppendFile] = []
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    # -- what files tell ----------------------------------------------------------------------------------------------

    def began(self, file: AppendFile, why: str) -> None:
        with self._lock:
            self._places.setdefault(file.place, _Place()).files[file.path] = why
        self._tell_of(file.place)

    def _tell_of(self, folder: Path) -> None:
        """Unless it was told, or there was another trouble just before: then `look` comes back to it."""
        with self._lock:
            place, now = self._places[folder], time.monotonic()
            if place.told or not place.files or now - place.told_at < _SAY_AGAIN_AFTER:
                return
            place.told, place.told_at = True, now
            path, why = next(iter(place.files.items()))
        self.tell(
            f"{path} cannot be written: {why}. Training goes on, and writing is tried again; what cannot be written "
            f"will be missing from {folder}"
        )

    def ended(self, file: AppendFile) -> None:
        with self._lock:
            place = self._places.setdefault(file.place, _Place())
            place.files.pop(file.path, None)
            place.lossy |= file.lossy
            if place.files:
                return
            told, lossy = place.told, place.lossy
            place.told = place.lossy = False
        if told:
            missing = "some of it is missing, which is marked there" if lossy else "nothing is missing"
            self.tell(f"{file.place} can be written again; {missing}")

    # -- writes that do not return ------------------------------------------------------------------------------------

    def watch(self, file: AppendFile) -> None:
        self._files.append(file)
        if self._loop is not None and self._timer is None:
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look_again)

    def forget(self, file: AppendFile) -> None:
        self._files.remove(file)

    def _look_again(self) -> None:
        assert self._loop is not None
        self.look()
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look_again) if self._files else None

    def look(self) -> None:
        for folder in tuple(self._places):
            self._tell_of(folder)
        now = time.monotonic()
        for file in tuple(self._files):  # a thread may forget one meanwhile
            since = file.waiting_since
            if since is not None and now - since > SLOW and file.trouble is None:
                file.fail(f"the disk has not answered for {now - since:.0f} s")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def tell(self, text: str) -> None:
        """From any thread."""
        if self._loop is None:
            self._say(text)
            return
        try:
            self._loop.call_soon_threadsafe(self._say, text)
        except RuntimeError:
            return  # the loop has ended, and so has the job
