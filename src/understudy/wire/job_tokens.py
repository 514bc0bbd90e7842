"""The secret that agents and coordinators of a job share, and its successor while it is being changed.

A file has one token per line. The first one seals the lines that we open; all are taken on lines that others open. So
hosts may change at different times: the next token is there as a second line everywhere before any party puts it first.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

from understudy.errors import SettingsError
from understudy.files.private import read_secret_text
from understudy.files.rereading import Reread

_FLAG = "--token-file"
_SHORTEST, _MOST = 16, 4


class JobTokens(Reread[tuple[str, ...]]):
    """`present`: what opens or takes a connection looks there. `file` None: from the environment, which cannot
    change."""

    effect = "new lines use them"

    def __init__(self, present: Sequence[str], file: Path | None = None) -> None:
        super().__init__(tuple(present), None if file is None else lambda: _read(file))
        self._file = file

    @staticmethod
    def of(token: "str | JobTokens") -> "JobTokens":
        return JobTokens((token,)) if isinstance(token, str) else token

    @staticmethod
    def read(file: Path) -> "JobTokens":
        return JobTokens(_read(file), file)

    @property
    def own(self) -> str:
        return self.present[0]

    @property
    def title(self) -> str:
        return f"the tokens in {_FLAG} {self._file}"


def checked(tokens: Sequence[str], where: str = _FLAG) -> tuple[str, ...]:
    """Raises `SettingsError`, which never shows a token."""
    if not tokens or any(len(token) < _SHORTEST for token in tokens):
        hint = secrets.token_hex(_SHORTEST)
        raise SettingsError(f"give the job a token of {_SHORTEST} characters or more with {where}, for example {hint}")
    if len(tokens) > _MOST or len(set(tokens)) < len(tokens):
        raise SettingsError(f"{where}: give at most {_MOST} tokens, one per line and each once")
    return tuple(tokens)


def _read(file: Path) -> tuple[str, ...]:
    lines = [line.strip() for line in read_secret_text(_FLAG, file).splitlines()]
    return checked([line for line in lines if line], f"{_FLAG} {file}")
