"""A log of files in a folder that several hosts share: each has a number, and the first to make number k+1 wins.

A file is written whole under a name of its own, brought to the disk and then linked to its number. `link` fails where
that name exists, for every host that shares the folder, so two writers that both hold k for the newest can never both
append to it. No clock and no lock is needed, and a writer that dies leaves either a whole file or none.

Old files may be removed, but never the newest, and none that is still needed. A writer that slept meanwhile may then
make a number again that was removed. It finds that out because a higher number is there when it looks afterwards, and
what it made is below the newest file, where no reader looks.
"""

import os
import secrets
import time
from collections.abc import Collection
from pathlib import Path

from understudy.files.private import FILE_MODE, make_private_folder

_UNFINISHED = "unfinished-"
_FORGOTTEN_AFTER = 3600.0  # seconds after which an unfinished file is no longer of a writer that lives
_DIGITS = 20


class NumberedFiles:
    """`folder` need not exist yet. Every method does disk I/O, and raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> int:
        """0: there is none."""
        return max(self._numbers(), default=0)

    def read(self, number: int) -> bytes | None:
        """None: there is no such file (any more)."""
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None

    def append(self, number: int, content: bytes) -> bool:
        """Make this file, on the disk when this returns. False: there is one with this number or a later one. No two
        contents are alike: the same one again is the same attempt, whose answer was lost."""
        made = make_once(self._path(number), content) or self.read(number) == content
        return made and self.newest() == number

    def keep_only(self, needed: Collection[int], below: int) -> None:
        """Remove files with numbers below `below`, except those that are needed, and what dead writers left."""
        for number in sorted(self._numbers()):
            if number < below and number not in needed:
                self._path(number).unlink(missing_ok=True)
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            try:
                if time.time() - path.stat().st_mtime > _FORGOTTEN_AFTER:
                    path.unlink()
            except FileNotFoundError:
                continue

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:0{_DIGITS}d}"

    def _numbers(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self.folder) if name.isdecimal()]
        except FileNotFoundError:
            return []


def make_once(path: Path, content: bytes) -> bool:
    """A private file, whole and on the disk, or not at all. False: it is there already."""
    make_private_folder(path.parent)
    unfinished = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return False
        _bring_to_disk(path.parent)
        return True
    finally:
        unfinished.unlink(missing_ok=True)


def _bring_to_disk(folder: Path) -> None:
    """The names in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
