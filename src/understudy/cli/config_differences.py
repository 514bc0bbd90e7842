"""Which settings differ between the hosts of a job, and whether they may.

Which ones must not is not written here: they are those on which the policy depends that every host brings to the
coordinator, and that it compares (`coordinator.origin`).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from understudy.cli import run_flags
from understudy.cli.config_check import Checked
from understudy.cli.config_file import POLICY, keys_of, parser_of
from understudy.cli.placed import placement_of
from understudy.cli.policy_file import PolicyFile
from understudy.coordinator.origin import differing_settings
from understudy.errors import SettingsError
from understudy.protocol.policy import Policy

JOB = "job"  # is compared as well, between the hosts of a job and its coordinators
OF_A_HOST: Mapping[str, frozenset[str]] = {
    "run": frozenset(
        {
            *("node-rank", "host-name", "local-addr", "spare-host", "spares", "drain-grace", "device-metrics"),
            *("leave-code", "rendezvous-timeout"),
            *("certs", "token-file", "run-dir", "log-dir", "no-progress", "log-format", POLICY),
        }
    ),
    "coordinator": frozenset(
        {
            *("listen", "advertise", "http", "health", "http-tokens", "alert-rules", "certs", "token-file"),
            *("store-certs", "store-login", "run-dir", "log-format", "new-run"),
        }
    ),
}
"""What is a host's own: addresses, folders, names, its place, what it offers."""


class Kind(enum.Enum):
    MUST_BE_EQUAL = "must be equal, or the coordinator refuses the host"
    MAY_DIFFER = "may differ"
    NOT_COMPARED = "differ, and the coordinator does not compare them: make sure that it is meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """`values`: what is set, and in which files."""

    key: str
    kind: Kind
    values: tuple[tuple[Any, tuple[str, ...]], ...]


def differences(files: Sequence[Checked]) -> list[SettingDifference]:
    """Between files that are right, by kind."""
    policies = [file.policy for file in files if file.policy is not None]
    alike = not any(differing_settings(one, other) for one, other in pairwise(policies))
    found = [_jobs(files)]
    for key in dict.fromkeys(key for file in files for key in file.settings if key.partition(".")[2] != JOB):
        values = _by_value([(str(file.path), file.settings[key]) for file in files if key in file.settings])
        if len(values) > 1:
            kind = _kind(key, [value for value, _ in values])
            if kind is not Kind.MUST_BE_EQUAL or not alike:  # the same may be said by two keys
                found.append(SettingDifference(key=key, kind=kind, values=values))
    order = list(Kind)
    return sorted((one for one in found if one is not None), key=lambda one: order.index(one.kind))


def _jobs(files: Sequence[Checked]) -> SettingDifference | None:
    told = [
        (f"{file.path} [{command}]", file.settings[f"{command}.{JOB}"])
        for file in files
        for command in OF_A_HOST
        if f"{command}.{JOB}" in file.settings
    ]
    values = _by_value(told)
    return SettingDifference(key=JOB, kind=Kind.MUST_BE_EQUAL, values=values) if len(values) > 1 else None


def _by_value(told: Sequence[tuple[str, Any]]) -> tuple[tuple[Any, tuple[str, ...]], ...]:
    values = {repr(value): value for _, value in told}
    return tuple((value, tuple(file for file, its in told if repr(its) == shown)) for shown, value in values.items())


def _kind(key: str, values: Sequence[Any]) -> Kind:
    table, _, name = key.partition(".")
    if table == POLICY:
        return Kind.MUST_BE_EQUAL
    if name in OF_A_HOST[table]:
        return Kind.MAY_DIFFER
    if table == "run" and len({_policy_with(name, value) for value in values}) > 1:
        return Kind.MUST_BE_EQUAL
    return Kind.NOT_COMPARED


def _policy_with(name: str, value: Any) -> Policy | str:
    """What a host would bring to the coordinator, were this the only flag that it is given."""
    nothing = PolicyFile()
    args = nothing.beneath(parser_of("run").parse_args(["--coordinator", "127.0.0.1:1", "script"]))
    setattr(args, keys_of("run")[name].dest, value)
    try:
        return run_flags.policy_of(args, nothing, placement_of(args, {}))
    except SettingsError as error:  # some other limit, which must be equal as well, allows it
        return str(error)
