"""Former names of flags, and of keys in configuration and policy files. Each works for one release, with a notice.

Knows only the names; what a flag or key means is declared where it has its new one. The command line accepts the former
flags (`main`), and the readers of files the former keys (`config_file`, `policy_file`). To end the support of a name,
delete its line.
"""

import argparse
import sys
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any

from understudy.errors import SettingsError

FLAGS: Mapping[str, str] = {
    "--suspicion": "--host-quarantine",
    "--host-patience": "--host-timeout",
    "--notice": "--drain-grace",
    "--hang-floor": "--step-timeout-min",
    "--hang-factor": "--step-timeout-factor",
    "--forming-limit": "--regroup-timeout",
    "--preparation-limit": "--warmup-timeout",
    "--compare-twins": "--check-replicas-every",
    "--peer-memory": "--peer-snapshot-every",
    "--digest-every": "--ledger-digest-every",
    "--plain": "--no-progress",
    "--no-nursery": "--no-fork-server",
    "--fork-first-ranks": "--fork-initial-ranks",
    "--most-hosts": "--max-hosts",
}
"""In `[run]`, `[coordinator]` and `[policy.limits]` the same names are keys, without their dashes."""

POLICY_TABLES: Mapping[str, str] = {"ladder": "recovery"}
RECOVERY_KEYS: Mapping[str, str] = {
    "attempts-per-rung": "attempts-per-strategy",
    "recovery-attempts": "max-attempts",
    "probation": "checked-steps",
}
PEER_MEMORY_KEYS: Mapping[str, str] = {"every": "snapshot-every"}


@cache
def notice(former: str, name: str) -> None:
    """Once in a process: a command line that names a configuration file is parsed twice."""
    print(f"understudy: {former} is now called {name}; the former name works in this release only", file=sys.stderr)


def accept_flags(parser: argparse.ArgumentParser) -> None:
    """The parser takes the former names of its flags as well; `--help` does not show them."""
    present = {spelling: action for action in parser._actions for spelling in action.option_strings}
    for former, name in FLAGS.items():
        if name in present:
            spellings = dict.fromkeys((former, "--" + former[2:].replace("-", "_")))
            parser.add_argument(*spellings, action=_FormerFlag, renamed=present[name])


class _FormerFlag(argparse.Action):
    """Gives notice, and does what the flag does."""

    def __init__(self, option_strings: Sequence[str], *, renamed: argparse.Action, **_dest: str) -> None:
        super().__init__(
            option_strings,
            renamed.dest,
            nargs=renamed.nargs,
            type=renamed.type,  # type: ignore[arg-type]  # never the name of a registered type
            choices=renamed.choices,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
        self._renamed = renamed

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _spelling: str | None = None
    ) -> None:
        notice(self.option_strings[0], self._renamed.option_strings[0])
        self._renamed(parser, namespace, values, self._renamed.option_strings[0])


def renamed_keys(table: Mapping[str, Any], names: Mapping[str, str], within: str) -> dict[str, Any]:
    """The table with today's keys. `within`: the name of the table, for the notice. Raises `SettingsError` if a key is
    there under both of its names."""
    today: dict[str, Any] = {}
    for key, value in table.items():
        name = names.get(key, key)
        if name != key:
            if name in table:
                raise SettingsError(f"{_path(within, key)}: it is now called {name}, which is there as well; keep that")
            notice(_path(within, key), _path(within, name))
        today[name] = value
    return today


def keys_within(known: Container[str]) -> dict[str, str]:
    """Former and new names of the keys that are flags. `known`: the keys of the table."""
    return {former[2:]: name[2:] for former, name in FLAGS.items() if name[2:] in known}


def policy_keys(tables: Mapping[str, Any], limits: Container[str], within: str) -> dict[str, Any]:
    """A policy with today's keys. `limits`: the keys of its table `[limits]`."""
    today = renamed_keys(tables, POLICY_TABLES, within)
    today = _within(today, "limits", keys_within(limits), within)
    today = _within(today, "recovery", RECOVERY_KEYS, within)
    recovery = today.get("recovery")
    if isinstance(recovery, dict):
        today["recovery"] = _within(recovery, "peer-memory", PEER_MEMORY_KEYS, _path(within, "recovery"))
    return today


def _within(tables: dict[str, Any], name: str, names: Mapping[str, str], within: str) -> dict[str, Any]:
    table = tables.get(name)
    return {**tables, name: renamed_keys(table, names, _path(within, name))} if isinstance(table, dict) else tables


def _path(within: str, key: str) -> str:
    return f"{within}.{key}" if within else key
