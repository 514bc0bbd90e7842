"""The reference pages are what the code says today, and every flag, key and metric has a description."""

import argparse
import re
from functools import cache

import pytest
from docs.tools import reference

from understudy.api.metric_names import METRICS


@cache
def made() -> dict[str, str]:
    return reference.pages()


def test_the_pages_are_those_that_the_code_makes() -> None:
    committed = {path.name: path.read_text() for path in reference.FOLDER.glob("*.md")}
    assert committed == made(), "run `python docs/tools/reference.py` and commit what it writes"


@pytest.mark.parametrize("command", reference.commands())
def test_every_flag_is_described_once(command: str) -> None:
    page = made()["command-line.md"]
    section = page.partition(f"## `understudy {command}`\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    shown = [flag for row in rows for flag in re.findall(r"`(--?[a-z-]+)`", row)]
    accepted = [flag for action in _actions(reference.parser_of(command)) for flag in action.option_strings]
    assert sorted(shown) == sorted(flag for flag in accepted if "_" not in flag)


@pytest.mark.parametrize("command", reference.commands())
def test_every_argument_has_a_text(command: str) -> None:
    silent = [action.dest for action in _actions(reference.parser_of(command)) if not action.help]
    assert not silent, f"understudy {command}: the only description of an argument is its help: {silent}"


def test_every_metric_has_a_text() -> None:
    assert all(declared.text for declared in METRICS.values())


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [one for inner in action.choices.values() for one in _actions(inner)]
        elif reference.is_documented(action):
            found.append(action)
    return found
