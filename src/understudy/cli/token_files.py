"""The tokens that a command is given: in a file that only its owner can read, or in the environment."""

import os
import secrets
from pathlib import Path

from understudy.errors import SettingsError
from understudy.files.private import read_secret_text
from understudy.foundation.settings import API_TOKEN, JOB_TOKEN

_FLAG = "--token-file"
_SHORTEST = 16


def read_token(file: Path | None) -> str:
    """The secret that agents and coordinators of a job share."""
    token = os.environ.get(JOB_TOKEN, "") if file is None else read_secret_text(_FLAG, file).strip()
    if len(token) < _SHORTEST:
        hint = secrets.token_hex(_SHORTEST)
        raise SettingsError(f"give the job a token of 16 characters or more with --token-file, for example {hint}")
    return token


def read_api_token(file: Path | None) -> str:
    """What a command shows to the API of a job; empty if it was given none."""
    return (os.environ.get(API_TOKEN, "") if file is None else read_secret_text(_FLAG, file)).strip()
