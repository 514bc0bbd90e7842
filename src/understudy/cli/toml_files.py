"""What the files of the command line have in common: how TOML is read, and how a key that does not exist is refused."""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from understudy.errors import SettingsError

_LIKE_ENOUGH = 0.4  # of difflib's ratio; what is less alike was not meant


def read_toml(flag: str, path: Path) -> dict[str, Any]:
    """Raises `SettingsError`, which names the file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{flag} {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{flag} {path}: {error}") from None


def nearest(key: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(key, list(known), n=1, cutoff=_LIKE_ENOUGH)), None)


def no_such_key(within: str, key: str, known: Iterable[str]) -> str:
    """`within`: the table, empty at the top of the file."""
    before, meant = f"{within}." if within else "", nearest(key, known)
    hint = "" if meant is None else f"; the nearest is {before}{meant}"
    return f"{before}{key}: there is no such key{hint}"
