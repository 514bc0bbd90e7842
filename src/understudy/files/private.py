"""Files and folders that are for one user only: what we make ourselves, and secrets that we are given.

One rule for all secrets: users other than the owner may neither read nor change them. What exists already keeps its
mode.
"""

import os
import shlex
import stat
from pathlib import Path

from understudy.errors import SettingsError

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def read_secret(flag: str, file: Path) -> bytes:
    """Raises `SettingsError`, which names the flag, the file and what to do, and never shows the content. The mode is
    that of the file that is read, even if another one takes its name meanwhile."""
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise SettingsError(
                    f"{flag} {file}: its mode is {mode:04o}, so that others than its owner may read or change it; "
                    f"run chmod 600 {shlex.quote(str(file))}"
                )
            return opened.read()
    except OSError as error:
        raise SettingsError(f"{flag} {file}: {error.strerror}") from None


def read_secret_text(flag: str, file: Path) -> str:
    try:
        return read_secret(flag, file).decode("utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{flag} {file}: not a text in UTF-8") from None


def make_private_folder(path: Path) -> None:
    """With all folders above it that are missing: `Path.mkdir` would make those as the umask says."""
    try:
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private_folder(path.parent)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
