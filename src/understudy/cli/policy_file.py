"""`--policy FILE`: the timeouts of a job and the budget of each recovery strategy, in one TOML file. The table
`[policy]` of a configuration file has the same keys.

Strict: what is misspelt or of the wrong type is refused by its name. Flags of the command line win over the file, and
the file over the defaults. `docs/policy.md` explains the keys.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from understudy.cli import former_names
from understudy.cli.toml_files import no_such_key, read_toml
from understudy.errors import SettingsError
from understudy.protocol.policy import Policy
from understudy.protocol.rungs import RungLimits

_DEFAULT = Policy(world_size=1)

Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    pass


class StrategyTable(_Table, frozen=True, kw_only=True):
    allowed: Annotated[bool, msgspec.Meta(description="false: the strategy is never used")] = True
    budget: Annotated[
        Count | None,
        msgspec.Meta(description="times in a job that the strategy may be used; if not given, what is usual"),
    ] = None

    def limit(self, usual: int | None) -> int | None:
        if not self.allowed:
            return 0
        return usual if self.budget is None else self.budget


class PeerMemoryTable(StrategyTable, frozen=True, kw_only=True):
    snapshot_every: Annotated[
        Count, msgspec.Meta(description="steps between two snapshots, as --peer-snapshot-every; 0: none is taken")
    ] = _DEFAULT.peer_memory


def _strategy_table(strategy: dataclasses.Field[Any]) -> tuple[str, Any, StrategyTable]:
    table = PeerMemoryTable if strategy.name == "peer_memory" else StrategyTable
    return strategy.name, Annotated[table, msgspec.Meta(description=strategy.metadata["about"])], table()


_Strategies: Any = msgspec.defstruct(
    "_Strategies", map(_strategy_table, dataclasses.fields(RungLimits)), bases=(_Table,), frozen=True, kw_only=True
)
"""One table for each recovery strategy that there is."""


class RecoveryTable(_Strategies):  # type: ignore[misc]
    """The descriptions here and in the tables above are those of the reference page (`docs/tools/reference.py`)."""

    attempts_per_strategy: Annotated[
        AtLeastOne, msgspec.Meta(description="generations in a row that do not resume, until all processes begin anew")
    ] = _DEFAULT.attempts_per_rung
    checked_steps: Annotated[
        Count,
        msgspec.Meta(description="steps after a recovery in which bad state leads to the next strategy; 0: none"),
    ] = _DEFAULT.probation
    max_attempts: Annotated[
        AtLeastOne, msgspec.Meta(description="generations in a row that do not resume, until the job stops")
    ] = _DEFAULT.recovery_attempts


class LimitsTable(_Table, frozen=True, kw_only=True):
    """Every key is the flag of the same name."""

    unresponsive_timeout: Seconds = _DEFAULT.unresponsive_timeout
    busy_timeout: Seconds = _DEFAULT.busy_timeout
    idle_timeout: Seconds = _DEFAULT.idle_timeout
    setup_timeout: Seconds = _DEFAULT.setup_timeout
    step_timeout_min: Seconds = _DEFAULT.stall_floor
    step_timeout_factor: Seconds = _DEFAULT.stall_factor
    warmup_timeout: Seconds = _DEFAULT.preparation_limit
    regroup_timeout: Seconds = _DEFAULT.forming_limit
    host_timeout: Seconds = _DEFAULT.host_patience
    host_quarantine: Annotated[float, msgspec.Meta(ge=0)] = _DEFAULT.suspicion
    max_replacements: Count = _DEFAULT.max_replacements
    max_deaths_per_step: AtLeastOne = _DEFAULT.max_deaths_per_step
    min_healthy: Count = _DEFAULT.min_healthy


class PolicyFile(_Table, frozen=True, kw_only=True):
    """Without a file: the defaults."""

    recovery: RecoveryTable = RecoveryTable()
    limits: LimitsTable = LimitsTable()

    def rungs(self) -> RungLimits:
        usual = {strategy.name: strategy.default for strategy in dataclasses.fields(RungLimits)}
        return RungLimits(**{name: getattr(self.recovery, name).limit(limit) for name, limit in usual.items()})

    def beneath(self, args: argparse.Namespace) -> argparse.Namespace:
        """The arguments, with what the file says where no flag was given."""
        told: dict[str, Any] = {
            **msgspec.structs.asdict(self.limits),
            "peer_snapshot_every": self.recovery.peer_memory.snapshot_every,
        }
        given = vars(args)
        return argparse.Namespace(**{**given, **{key: told[key] for key in told if given[key] is None}})


def read_policy_file(path: Path) -> PolicyFile:
    """Raises `SettingsError`, which names the file and the key."""
    tables = read_toml("--policy", path)
    try:
        return policy_from(tables)
    except SettingsError as error:
        raise SettingsError(f"--policy {path}: {error}") from None


def policy_from(tables: Mapping[str, Any], within: str = "") -> PolicyFile:
    """Raises `SettingsError`, which names the key; the caller knows the file. `within`: where the tables are."""
    try:
        return msgspec.convert(todays_keys(tables, within), PolicyFile)
    except msgspec.ValidationError as error:
        raise SettingsError(_by_name(str(error), within)) from None


def todays_keys(tables: Any, within: str) -> Any:
    """Raises `SettingsError` if a key is there under both of its names. What is no table is refused elsewhere."""
    limits = LimitsTable.__struct_encode_fields__
    return former_names.policy_keys(tables, limits, within) if isinstance(tables, dict) else tables


def _by_name(complaint: str, within: str) -> str:
    """msgspec's words, with the key first."""
    what, _, where = complaint.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    key = ".".join(part for part in (within, path) if part)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    if unknown is not None:
        return no_such_key(key, unknown[1], _keys_at(path))
    return f"{key}: {what[:1].lower()}{what[1:]}"


def _keys_at(path: str) -> tuple[str, ...]:
    table: Any = PolicyFile()
    for part in path.split(".") if path else ():
        table = getattr(table, part.replace("-", "_"))
    keys: tuple[str, ...] = table.__struct_encode_fields__
    return keys
