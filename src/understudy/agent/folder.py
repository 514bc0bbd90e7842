"""The agent's small folder: its socket and the progress pages. In memory where possible, for the path must be short and
the pages are written at every step.
"""

import os
import shutil
import socket
import tempfile
from pathlib import Path

SOCKET = "agent"
_PREFIX = "understudy-"


def new_folder(parent: Path | None = None) -> Path:
    """For this user only (0700). What killed agents left behind in the same place is swept away."""
    parent = parent or _memory_folder() or Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))


def _is_abandoned(folder: Path) -> bool:
    """Ours, and nobody listens on its socket any more. A folder whose socket does not exist yet is left alone."""
    try:
        if folder.stat().st_uid != os.getuid() or not (folder / SOCKET).is_socket():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(str(folder / SOCKET))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _memory_folder() -> Path | None:
    shared = Path("/dev/shm")
    try:
        with tempfile.TemporaryFile(dir=shared):
            return shared
    except OSError:
        return None
