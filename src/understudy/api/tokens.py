"""Permissions: tokens with roles, from a file that only its owner can read.

    [[token]]
    name = "alertmanager"                 # appears in the audit
    roles = ["webhook"]                   # read, act (which may also read), webhook
    sha256 = "9f86d081884c7d65..."        # of the token; or token = "..." itself

A token is 16 characters or more. Comparing takes the same time whatever was presented. The file is read again while the
job runs (`files.rereading`).
"""

import enum
import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.errors import SettingsError
from understudy.files.private import read_secret_text
from understudy.files.rereading import Reread

_SHORTEST = 16
_MOST = 256
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Role(enum.Enum):
    READ = "read"
    ACT = "act"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class Caller:
    """`name`: of its token."""

    name: str
    roles: frozenset[Role]

    def may(self, role: Role) -> bool:
        return role in self.roles or (role is Role.READ and Role.ACT in self.roles)


ANONYMOUS = Caller("any client on this host", frozenset({Role.READ}))
"""The caller where no tokens are asked for: may read, and ask for nothing."""


class Tokens(Reread[Mapping[bytes, Caller]]):
    """`present`: by the SHA-256 of each token. `file`: where they came from, if they can be renewed there."""

    effect = "requests are checked with them"

    def __init__(self, callers: Mapping[bytes, Caller], file: Path | None = None) -> None:
        super().__init__(callers, None if file is None else lambda: _read(file))
        self._file = file

    @property
    def title(self) -> str:
        return f"the tokens in --http-tokens {self._file}"

    def caller(self, presented: str) -> Caller | None:
        """All of them are compared, so that the time tells nothing."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()
        found: Caller | None = None
        for known, caller in self.present.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def read_tokens(file: Path) -> Tokens:
    return Tokens(_read(file), file)


def _read(file: Path) -> Mapping[bytes, Caller]:
    """Raises `SettingsError`, which names the file and the key, and never shows a token."""
    content = read_secret_text("--http-tokens", file)
    try:
        parsed = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"--http-tokens {file}: {error}") from None
    return _Reader(file).tokens(parsed)


class _Reader:
    def __init__(self, file: Path) -> None:
        self._file = file

    def tokens(self, content: Mapping[str, Any]) -> Mapping[bytes, Caller]:
        entries = content.get("token")
        if set(content) != {"token"} or not isinstance(entries, list) or not 0 < len(entries) <= _MOST:
            raise self._wrong("token", f"give 1 to {_MOST} tables [[token]], and nothing else")
        callers: dict[bytes, Caller] = {}
        for number, entry in enumerate(entries):
            where = f"token[{number}]"
            if not isinstance(entry, dict):
                raise self._wrong(where, "give a table, as [[token]]")
            digest, caller = self._entry(entry, where)
            if digest in callers or caller.name in {known.name for known in callers.values()}:
                raise self._wrong(where, "the same token or the same name stands there twice")
            callers[digest] = caller
        return callers

    def _entry(self, entry: Mapping[str, Any], where: str) -> tuple[bytes, Caller]:
        for key in entry:
            if key not in ("name", "roles", "token", "sha256"):
                raise self._wrong(f"{where}.{key}", "there is no such key; there is name, roles, token, sha256")
        name, roles = entry.get("name"), entry.get("roles")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._wrong(f"{where}.name", "give 1 to 64 letters, digits, dots, dashes")
        known = {role.value for role in Role}
        if (
            not isinstance(roles, list)
            or not roles
            or not all(isinstance(role, str) and role in known for role in roles)
        ):
            raise self._wrong(f"{where}.roles", f"give a list of {', '.join(sorted(known))}")
        return self._digest(entry, where), Caller(name, frozenset(Role(role) for role in roles))

    def _digest(self, entry: Mapping[str, Any], where: str) -> bytes:
        token, digest = entry.get("token"), entry.get("sha256")
        if (token is None) == (digest is None):
            raise self._wrong(where, "give either token or sha256")
        if token is not None:
            if not isinstance(token, str) or len(token) < _SHORTEST or not token.isascii() or " " in token:
                raise self._wrong(f"{where}.token", f"give {_SHORTEST} characters or more, without spaces")
            return hashlib.sha256(token.encode("ascii")).digest()
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
            raise self._wrong(f"{where}.sha256", "give the 64 digits of `printf %s TOKEN | sha256sum`")
        return bytes.fromhex(digest)

    def _wrong(self, key: str, what: str) -> SettingsError:
        return SettingsError(f"--http-tokens {self._file}: {key}: {what}")
