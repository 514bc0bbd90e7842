"""The secrets of a job whose store is a folder: made there once, by the process that comes first.

    FOLDER/token                 the job's token
    FOLDER/authority.pem         the key that signs the certificates of all parties
    FOLDER/parties/NAME-XXXX/    ca.pem, cert.pem and key.pem of one party

A process that can read the folder is the user's, and so it may be any party. Users that cannot read it are strangers.
"""

import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from understudy.errors import SettingsError
from understudy.files.numbered import make_once
from understudy.files.private import make_private_folder, read_secret
from understudy.wire.issuing import Authority, issue, make_authority
from understudy.wire.roles import PartyRole

_FLAG = "--store"
_DAYS = 3650.0  # no job outlives its own authority, which is of use nowhere else


def token_file(root: Path) -> Path:
    path = root / "token"
    _make(root, path, lambda: secrets.token_hex(16).encode())
    return path


def certificates_of(root: Path, party: str, role: PartyRole) -> Path:
    """The folder with those of a party: new ones of the same authority each time, in a folder of their own, so that two
    processes cannot be in each other's way."""
    path = root / "authority.pem"
    _make(root, path, lambda: make_authority(_DAYS).secret_pem())
    try:
        authority = Authority.read(read_secret(_FLAG, path))
    except ValueError as error:
        raise SettingsError(f"{_FLAG} {path}: it holds no key of an authority ({error})") from None
    place = root / "parties" / f"{quote(party, safe='')}-{secrets.token_hex(4)}"
    try:
        make_private_folder(place.parent)
        issue(place, party, [role], authority, _DAYS)
    except OSError as error:
        raise _unusable(root, error) from error
    return place


def _make(root: Path, path: Path, content: Callable[[], bytes]) -> None:
    try:
        make_private_folder(root)
        mode = stat.S_IMODE(root.stat().st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SettingsError(
                f"{_FLAG} {root}: its mode is {mode:04o}, so that others than its owner may change the secrets in it; "
                f"run chmod go-w {root}, or name a folder in it that does not exist yet"
            )
        if not path.exists():
            make_once(path, content())
    except OSError as error:
        raise _unusable(root, error) from error


def _unusable(root: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"{_FLAG} {root}: {error.strerror or error}; it must be a folder that all hosts share, on a file system with "
        "hard links"
    )
