"""Where a run's API is, written in the folder of the run so that commands find it. Only the leader writes it.

Coordinators may share the folder. So one that stands by reads there where the leader's API is, for clients that ask it.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from understudy.files.private import write_private

ADDRESS_FILE = "http.json"
_DISK_TIMEOUT = 1.0  # seconds for a small file
_LARGEST = 4096  # bytes


def write_address(run_dir: Path, url: str) -> None:
    """Renamed into its place, so that no reader sees half of it."""
    text = json.dumps({"url": url, "pid": os.getpid()}) + "\n"
    new = run_dir / f".{ADDRESS_FILE}.{os.getpid()}"

    def write() -> None:
        with contextlib.suppress(OSError):  # only a convenience: `--api` does without it
            write_private(new, text.encode())
            new.replace(run_dir / ADDRESS_FILE)

    _without_waiting_for_the_disk(write)


def remove_address(run_dir: Path, url: str) -> None:
    """Unless another one has written its own there."""
    file = run_dir / ADDRESS_FILE

    def remove() -> None:
        if _read(file) == url:
            with contextlib.suppress(OSError):
                file.unlink()

    _without_waiting_for_the_disk(remove)


class LeaderAddress:
    """Reads where the leader's API is, in a thread: one at a time, for as long as a disk that works may take."""

    def __init__(self, run_dir: Path, own: Callable[[], str]) -> None:
        self._file, self._own = run_dir / ADDRESS_FILE, own
        self._reading: concurrent.futures.Future[str] | None = None

    async def find(self) -> str:
        """Empty: it is not known, or it is the address of this one, which does not lead (any more)."""
        if self._reading is None or self._reading.done():
            self._reading = _read_in_thread(self._file)
        try:
            url = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._reading)), _DISK_TIMEOUT)
        except TimeoutError:
            return ""
        return "" if url == self._own() else url


def _read_in_thread(file: Path) -> "concurrent.futures.Future[str]":
    """Not in the loop's own pool of threads, whose end a disk that hangs would put off."""
    reading: concurrent.futures.Future[str] = concurrent.futures.Future()
    threading.Thread(target=lambda: reading.set_result(_read(file)), name="understudy-leader", daemon=True).start()
    return reading


def _read(file: Path) -> str:
    try:
        with file.open() as opened:
            url = json.loads(opened.read(_LARGEST))["url"]
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) and url.isprintable() else ""


def _without_waiting_for_the_disk(act: Callable[[], None]) -> None:
    """For as long as a disk that works may take, and no longer: the loop that serves the job is waiting."""
    acting = threading.Thread(target=act, name="understudy-address", daemon=True)
    acting.start()
    acting.join(_DISK_TIMEOUT)
