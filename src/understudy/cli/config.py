"""`understudy config check FILE...`: what configuration files set, what is wrong in them, and where hosts differ.

Exit codes: 0; 1 when settings differ that must be equal; 2 when a file is wrong.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from understudy.cli.config_check import Checked, check, defaults, flag_of
from understudy.cli.config_differences import Kind, SettingDifference, differences
from understudy.foundation.printable import printable

WRONG, REFUSED = 2, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    text = "say what files set and what is wrong in them; of several, one per host, what differs"
    checking = actions.add_parser("check", help=text, description=text)
    checking.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a configuration file (TOML)")


def main(args: argparse.Namespace) -> int:
    files = [check(path) for path in args.files]
    usual = defaults()
    right = [file for file in files if not file.wrong]
    found = differences(right)
    about = [line for file in files for line in _about(file, usual)]
    for line in (*about, *(_between(found, len(right)) if found or len(right) > 1 else ())):
        print(printable(line))  # files may come from anywhere
    if len(right) < len(files):
        return WRONG
    return REFUSED if any(one.kind is Kind.MUST_BE_EQUAL for one in found) else 0


def _about(file: Checked, usual: Mapping[str, Any]) -> Iterator[str]:
    yield f"{file.path}: {'wrong' if file.wrong else 'right'}, sets {_number(len(file.given), 'key')}"
    yield from (f"  WRONG  {text}" for text in file.wrong)
    for key, value in file.given.items():
        yield f"  {key} = {_shown(value)}{_remark(file, key, usual)}"
    yield from (f"  note: {text}" for text in file.remarks)


def _remark(file: Checked, key: str, usual: Mapping[str, Any]) -> str:
    if (flag := file.overruled_by(key)) is not None:
        return f"  (no effect: {flag} is set)"
    default = usual.get(flag_of(key))
    if not file.settings or default is None:
        return ""
    return "  (the default)" if file.effective(key) == default else f"  (default {_shown(default)})"


def _between(found: Sequence[SettingDifference], files: int) -> Iterator[str]:
    yield f"{'these settings differ' if found else 'no setting differs'} ({_number(files, 'file')} compared)"
    for kind, of_kind in groupby(found, lambda one: one.kind):
        yield f"  {kind.value}:"
        for one in of_kind:
            told = "; ".join(f"{_shown(value)} in {', '.join(names)}" for value, names in one.values)
            yield f"    {one.key}: {told}"


def _shown(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _number(count: int, of_what: str) -> str:
    return f"{count} {of_what}{'' if count == 1 else 's'}"
