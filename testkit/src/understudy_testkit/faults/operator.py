"""Does what an operator does, with the commands that an operator has: `understudy migrate`, `understudy drain` ..."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from understudy.files.private import write_private
from understudy_testkit.faults.assertions import NotProven

TOKEN = "an-operator-of-tests-only"
_TIMEOUT = 30.0  # seconds for one command


def write_tokens(folder: Path) -> Path:
    """For `--http-tokens`: one token that may act, and one for webhooks."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "api-tokens.toml"
    entries = [("operator", "act", TOKEN), ("monitor", "webhook", webhook_token())]
    tables = (f'[[token]]\nname = "{name}"\nroles = ["{role}"]\ntoken = "{token}"' for name, role, token in entries)
    write_private(file, "\n".join(tables).encode())
    return file


def webhook_token() -> str:
    return TOKEN[::-1]


def api_flags(folder: Path) -> tuple[str, ...]:
    """For `understudy run`, with whatever port is free."""
    return ("--http", "127.0.0.1:0", "--http-tokens", str(write_tokens(folder)))


def command(*words: str, prefix: Sequence[str] = ()) -> str:
    """Run one command of the operator. `prefix`: what brings it to another host."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "understudy", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
        env={**os.environ, "UNDERSTUDY_API_TOKEN": TOKEN},
    )
    if done.returncode != 0:
        raise NotProven(f"understudy {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
