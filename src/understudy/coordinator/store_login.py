"""The name and password with which coordinators log in to etcd: from a private file, and read again while they run."""

from pathlib import Path

from understudy.errors import SettingsError
from understudy.files.private import read_secret_text
from understudy.files.rereading import Reread

_FLAG = "--store-login"


class StoreLogin(Reread[tuple[str, str]]):
    """`present`: user and password, for the next connection. `file`: where they came from, if they can be renewed."""

    effect = "the next login at etcd uses them"

    def __init__(self, present: tuple[str, str], file: Path | None = None) -> None:
        super().__init__(present, None if file is None else lambda: _read(file))
        self._file = file

    @staticmethod
    def read(file: Path) -> "StoreLogin":
        return StoreLogin(_read(file), file)

    @property
    def title(self) -> str:
        return f"user and password in {_FLAG} {self._file}"


def _read(file: Path) -> tuple[str, str]:
    user, colon, password = read_secret_text(_FLAG, file).strip().partition(":")
    if not user or not colon:
        raise SettingsError(f"{_FLAG} {file}: give it as USER:PASSWORD")
    return user, password
