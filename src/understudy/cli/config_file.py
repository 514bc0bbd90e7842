"""`--config FILE`: one TOML file for everything that flags can set, for `understudy run` and `understudy coordinator`.

The keys of `[run]` and `[coordinator]` are the long flags of these commands, without their dashes. Keys and types are
read off the parsers, so that a new flag is a new key. `[policy]` has the keys of a policy file. What the file says
becomes the defaults of the parser, so that a flag of the command line wins over it. See `docs/configuration.md`.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from understudy.cli import former_names
from understudy.cli.policy_file import PolicyFile, policy_from, todays_keys
from understudy.cli.toml_files import nearest, no_such_key, read_toml
from understudy.errors import SettingsError
from understudy.ledger.concealing import has_password, is_secret

COMMANDS = ("run", "coordinator")
POLICY = "policy"
_FLAG = "--config"
_SECRET_ENDINGS = ("token", "key", "login")  # of keys that no flag has
_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a table",
    list: "a list",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a file says, and what of it cannot be. `tables`: for each command the keys that exist."""

    path: Path
    tables: Mapping[str, Mapping[str, Any]]
    policy: PolicyFile | None
    policy_keys: Mapping[str, Any]
    complaints: tuple[str, ...]

    def defaults(self, command: str) -> dict[str, Any]:
        """What the parser of a command takes for its own defaults."""
        table, actions = self.tables.get(command, {}), keys_of(command)
        told = {actions[key].dest: _as_given(actions[key], value) for key, value in table.items()}
        if self.policy is not None and command == "run":
            told[POLICY] = self.policy
        return told


def read_config(path: Path) -> ConfigFile:
    """For a command that is to use it. Raises `SettingsError`, which names the file and the key."""
    file = examine_config(path)
    if file.complaints:
        others = len(file.complaints) - 1
        more = f" (and {others} more: `understudy config check {path}`)" if others else ""
        raise SettingsError(f"{_FLAG} {path}: {file.complaints[0]}{more}")
    return file


def examine_config(path: Path) -> ConfigFile:
    """Everything that is wrong in a file, not only the first. Raises `SettingsError` if it cannot be read at all."""
    content = read_toml(_FLAG, path)
    complaints = [_stray(name, content[name]) for name in content if name not in (*COMMANDS, POLICY)]
    tables = {}
    for command in COMMANDS:
        table = content.get(command, {})
        if not isinstance(table, dict):
            complaints.append(f"{command}: expected a table, [{command}]")
            continue
        try:
            table = former_names.renamed_keys(table, former_names.keys_within(keys_of(command)), command)
        except SettingsError as error:
            complaints.append(str(error))
            continue
        found = dict(_objections(command, table))
        complaints.extend(found.values())
        tables[command] = {key: value for key, value in table.items() if key not in found}
    policy = None
    if POLICY in content:
        try:
            policy = policy_from(content[POLICY], POLICY)
        except SettingsError as error:
            complaints.append(str(error))
        if POLICY in tables.get("run", {}):
            complaints.append("run.policy: the table [policy] is in this file as well; keep one of them")
    kept = {name: table for name, table in tables.items() if name in content}
    keys = {} if policy is None else dict(flat(todays_keys(content[POLICY], POLICY), POLICY))
    return ConfigFile(path=path, tables=kept, policy=policy, policy_keys=keys, complaints=tuple(complaints))


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"understudy.cli.{command}").add_arguments(parser)
    return parser


@cache
def keys_of(command: str) -> Mapping[str, argparse.Action]:
    """Every key of a command's table, and the flag that it sets."""
    keys = {}
    for action in parser_of(command)._actions:
        spellings = [spelling for spelling in action.option_strings if spelling.startswith("--")]
        if spellings and spellings[0] != _FLAG:
            keys[spellings[0][2:]] = action
    return keys


def flat(table: Mapping[str, Any], within: str) -> Iterator[tuple[str, Any]]:
    """Keys with dots, and their values."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{within}.{key}")
        else:
            yield f"{within}.{key}", value


# -- what cannot be ---------------------------------------------------------------------------------------------------


def _stray(name: str, value: object) -> str:
    """At the top of the file there are only the tables."""
    owners = [command for command in COMMANDS if name in keys_of(command)]
    if owners and not isinstance(value, dict):
        return f"{name}: it belongs into a table: {' or '.join(f'[{owner}]' for owner in owners)}"
    return no_such_key("", name, (*COMMANDS, POLICY))


def _objections(command: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys, and why they cannot be used. A value is never repeated: it may be a secret in the wrong place."""
    actions = keys_of(command)
    for key, value in table.items():
        if key not in actions:
            yield key, _unknown(command, key, actions)
        elif (why := _unfit(actions[key], value)) is not None:
            yield key, f"{command}.{key}: {why}"


def _unknown(command: str, key: str, actions: Mapping[str, argparse.Action]) -> str:
    if is_secret(key) or re.split(r"[-_]", key)[-1] in _SECRET_ENDINGS:
        paths = (name for name, action in actions.items() if action.type is Path)
        meant = nearest(key, paths)
        which = "" if meant is None else f" with {command}.{meant}"
        return (
            f"{command}.{key}: secrets do not go into this file, which is passed around; put it into a file that only "
            f"its owner can read (chmod 600), and name that one{which}"
        )
    others = [other for other in COMMANDS if other != command and key in keys_of(other)]
    if others:
        return f"{command}.{key}: there is no such key; it belongs to [{others[0]}]"
    return no_such_key(command, key, actions)


def _unfit(action: argparse.Action, value: object) -> str | None:
    """Why a flag cannot take this value."""
    wanted = _types(action)
    if type(value) not in wanted:
        got = _NAMES.get(type(value), "a date")
        return f"expected {' or '.join(_NAMES[kind] for kind in wanted)}, got {got}"
    if action.choices is not None and value not in action.choices:
        return f"expected one of {', '.join(str(choice) for choice in action.choices)}"
    if isinstance(value, str) and has_password(value):
        return "there is a password in this address, and secrets do not go into this file, which is passed around"
    return None


def _types(action: argparse.Action) -> tuple[type, ...]:
    if action.nargs == 0:
        return (bool,)
    if action.type is int:
        return (int,)
    if action.type is float:
        return (float, int)
    return (str, int) if _counts(action) else (str,)


def _counts(action: argparse.Action) -> bool:
    """A flag whose text is a number unless one wants more: `--nproc-per-node 4`, or `auto`."""
    if action.dest in ("nnodes", "nproc_per_node"):
        return True
    return isinstance(action.default, str) and re.fullmatch(r"\d+(:\d+)?", action.default) is not None


def _as_given(action: argparse.Action, value: Any) -> Any:
    """As on the command line: the parser makes of text what it makes of a flag."""
    if action.type is float:
        return float(value)
    return value if action.nargs == 0 or action.type is int else str(value)
