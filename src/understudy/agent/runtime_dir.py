"""The agent's small folder: its socket and the progress pages. In memory where possible, for the path must be short and
the pages are written at every step.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOCKET = "agent"
_PREFIX = "understudy-"


@contextlib.contextmanager
def runtime_dir(parent: Path | None = None) -> Iterator[Path]:
    """For this user only (0700). What killed agents left behind in the same place is swept away.

    Its owner holds a lock on it, which the kernel gives back when the owner dies. The socket cannot tell whether its
    owner lives: between its bind and its listen it refuses connections like that of a dead process.
    """
    parent = parent or _memory_folder() or Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    mine = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with _opened(mine) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield mine
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Ours, and its owner is dead. A folder without a socket is left alone: its owner may not hold it yet."""
    try:
        if folder.stat().st_uid != os.getuid() or not (folder / SOCKET).is_socket():
            return False
        with _opened(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _memory_folder() -> Path | None:
    shared = Path("/dev/shm")
    try:
        with tempfile.TemporaryFile(dir=shared):
            return shared
    except OSError:
        return None
