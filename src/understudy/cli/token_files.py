"""The tokens that a command is given: in a file that only its owner can read, or in the environment."""

import os
from pathlib import Path

from understudy.files.private import read_secret_text
from understudy.foundation.settings import API_TOKEN, JOB_TOKEN
from understudy.wire.job_tokens import JobTokens, checked

_FLAG = "--token-file"


def read_job_tokens(file: Path | None) -> JobTokens:
    """The secret that agents and coordinators of a job share."""
    return JobTokens(checked([os.environ.get(JOB_TOKEN, "").strip()])) if file is None else JobTokens.read(file)


def job_token_is_given() -> bool:
    """In the environment."""
    return bool(os.environ.get(JOB_TOKEN, "").strip())


def read_api_token(file: Path | None) -> str:
    """What a command shows to the API of a job; empty if it was given none."""
    return (os.environ.get(API_TOKEN, "") if file is None else read_secret_text(_FLAG, file)).strip()
