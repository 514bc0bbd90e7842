"""What the commands that ask a job for something have in common: their flags, and what they print."""

import argparse
import getpass
import sys
from collections.abc import Mapping
from typing import Any

from understudy.cli import api_client
from understudy.cli.api_client import ApiProblem, client_for

EXIT_CODES = "Exit code 0: accepted (or would be); 1: the job refuses, with its reason; 3: no answer; 4: not allowed."


def add_arguments(parser: argparse.ArgumentParser, text: str) -> None:
    parser.description = f"{text} {EXIT_CODES}"
    parser.add_argument("--reason", help="why, for the ledger and for later readers (default: your name)")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be decided")
    api_client.add_arguments(parser)


def ask(args: argparse.Namespace, page: str, wanted: Mapping[str, object]) -> int:
    """Prints what was decided, why, and what to do next."""
    reason = args.reason or f"asked by {_user()} on the command line"
    try:
        answer = client_for(args).post(
            f"/v1/actions/{page}", {**wanted, "reason": reason[:500], "dry_run": bool(args.dry_run)}
        )
    except ApiProblem as problem:
        print("\n".join(problem.lines()), file=sys.stderr)
        return problem.code
    for line in answer_lines(answer):
        print(line)
    return api_client.REFUSED if answer["outcome"] == "would be refused" else 0


def answer_lines(answer: Mapping[str, Any]) -> list[str]:
    lines = [f"{answer['outcome']}: {answer['action']} (generation {answer['generation']})", f"why: {answer['reason']}"]
    lines += [f"decided: {event['kind']}: {event['reason']}" for event in answer["decisions"]]
    return [*lines, f"next: {answer['advice']}"]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "an unknown user"
