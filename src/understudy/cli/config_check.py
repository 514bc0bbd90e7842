"""What one configuration file comes to: the settings that it makes, and what `understudy run` would say of them.

A file is taken as if nothing were given on the command line. Files and folders that it names are not looked at, because
they may be on another host; only a policy file is read, because its limits count.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from understudy.cli import run_flags
from understudy.cli.config_file import COMMANDS, POLICY, ConfigFile, examine_config, flat, keys_of, parser_of
from understudy.cli.policy_file import PolicyFile
from understudy.errors import SettingsError
from understudy.protocol.policy import Policy

_SOME_SCRIPT = sys.executable  # stands for the script, which is no flag: it is there, as a file and as a program
_LIMITS, _RECOVERY = f"{POLICY}.limits", f"{POLICY}.recovery"
_SNAPSHOTS = f"{_RECOVERY}.peer-memory.snapshot-every"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """`given`: by key, as written. `settings`: what counts in the end, given or not. `policy`: what the coordinator
    would compare; None if the file is not for `understudy run`, or is wrong."""

    path: Path
    wrong: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy | None = None
    remarks: tuple[str, ...] = ()

    def overruled_by(self, key: str) -> str | None:
        """A key of `[run]` is a flag, and flags win over a policy."""
        flag = flag_of(key)
        return flag if flag != key and flag in self.given else None

    def effective(self, key: str) -> Any:
        return self.settings.get(flag_of(key), self.given.get(key))


def flag_of(key: str) -> str:
    """The key of `[run]` that sets the same as a key of `[policy]`, if there is one."""
    if key == _SNAPSHOTS:
        return "run.peer-snapshot-every"
    return f"run.{key.rpartition('.')[2]}" if key.startswith(f"{_LIMITS}.") else key


def check(path: Path) -> Checked:
    try:
        file = examine_config(path)
    except SettingsError as error:
        return Checked(path=path, wrong=(str(error),))
    given = {f"{command}.{key}": value for command in file.tables for key, value in file.tables[command].items()}
    given.update(file.policy_keys)
    if file.complaints:
        return Checked(path=path, wrong=file.complaints, given=given)
    try:
        settings = dict(_settings(file))
        request = _request(file) if _is_for_run(file) else None
    except SettingsError as error:
        return Checked(path=path, wrong=(str(error),), given=given)
    if request is None:
        return Checked(path=path, given=given, settings=settings)
    remarks = () if settings["run.coordinator"] or settings["run.store"] else request.remarks
    return Checked(path=path, given=given, settings=settings, policy=request.policy, remarks=remarks)


def defaults() -> dict[str, Any]:
    """Of every key that counts."""
    tables: dict[str, dict[str, Any]] = {command: {} for command in COMMANDS}
    nothing = ConfigFile(path=Path(), tables=tables, policy=None, policy_keys={}, complaints=())
    return dict(_settings(nothing))


def _is_for_run(file: ConfigFile) -> bool:
    return "run" in file.tables or file.policy is not None


def _settings(file: ConfigFile) -> Iterator[tuple[str, Any]]:
    if "coordinator" in file.tables:
        yield from _flags("coordinator", _parsed("coordinator", file))
    if _is_for_run(file):
        args = _parsed("run", file, _SOME_SCRIPT)
        policy = run_flags.policy_file_of(args)
        yield from _flags("run", policy.beneath(args))
        recovery = flat(msgspec.to_builtins(policy.recovery), _RECOVERY)
        yield from ((key, value) for key, value in recovery if flag_of(key) == key)


def _flags(command: str, args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for key, action in keys_of(command).items():
        value = getattr(args, action.dest)
        if not isinstance(value, PolicyFile):
            yield f"{command}.{key}", str(value) if isinstance(value, Path) else value


def _parsed(command: str, file: ConfigFile, *arguments: str) -> argparse.Namespace:
    parser = parser_of(command)
    parser.set_defaults(**file.defaults(command))
    return parser.parse_args(arguments)


def _request(file: ConfigFile) -> run_flags.RunRequest:
    args = _parsed("run", file, _SOME_SCRIPT)
    return run_flags.read_request(args, {}, Path(), live=False)
