"""The alert rules of an operator: which alert leads to which action. Read from a TOML file, checked key by key.

max_age_seconds = 600          # an alert that began longer ago never acts

[[rule]]                       # the first that matches counts
alert = "GpuFellOffTheBus"     # its alertname; "*" is any
match = { severity = "critical", xid = ["79", "48"] }
action = "abort"               # abort: replace the rank now; drain: move it at the next step; note: only record
scope = "rank"                 # "host": act on the whole host of what the labels name

[[host]]                       # what monitors call a host of the job
name = "host1"
aliases = ["10.0.0.1", "gpu-node-1"]
pods = ["trainer-0"]
devices = [{ slot = 0, uuid = "GPU-5c89...", pci_bus_id = "00000000:17:00.0" }]
"""

import enum
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.api.registry import HostEntry
from understudy.errors import SettingsError
from understudy.foundation.ids import HostId
from understudy.wire.inventory import Device

_DEFAULT_AGE = 600.0
_MOST = 1000  # rules, hosts, devices of a host
ANY = "*"


class RuleAction(enum.Enum):
    ABORT = "abort"
    DRAIN = "drain"
    NOTE = "note"


class Scope(enum.Enum):
    NAMED = "named"  # a rank if the labels name one, else the host
    RANK = "rank"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`match`: per label the values that fit; `ANY` among them: the label is there."""

    alert: str
    action: RuleAction
    match: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scope: Scope = Scope.NAMED

    def fits(self, alert: str, labels: Mapping[str, str]) -> bool:
        if self.alert not in (ANY, alert):
            return False
        return all(
            labels.get(label) in values or (ANY in values and bool(labels.get(label)))
            for label, values in self.match.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Without a file nothing fits, so every alert is only recorded."""

    rules: tuple[Rule, ...] = ()
    max_age: float = _DEFAULT_AGE
    hosts: Mapping[HostId, HostEntry] = field(default_factory=dict)

    def first(self, alert: str, labels: Mapping[str, str]) -> Rule | None:
        return next((rule for rule in self.rules if rule.fits(alert, labels)), None)


def read_rules(file: Path) -> Rules:
    """Raises `SettingsError`, which names the file and the key."""
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"--alert-rules {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--alert-rules {file}: {error}") from None
    return _Reader(file).rules(content)


class _Reader:
    def __init__(self, file: Path) -> None:
        self._file = file

    def rules(self, content: Mapping[str, Any]) -> Rules:
        self._only(content, "", "max_age_seconds", "rule", "host")
        age = content.get("max_age_seconds", _DEFAULT_AGE)
        if isinstance(age, bool) or not isinstance(age, int | float) or not 0 < age <= 86_400:
            raise self._wrong("max_age_seconds", "give seconds, more than 0 and at most 86400")
        entries = [self._host(entry, f"host[{n}]") for n, entry in enumerate(self._tables(content, "host"))]
        hosts = {entry.name: entry for entry in entries}
        if len(hosts) < len(entries):
            raise self._wrong("host", "a name stands there twice")
        uuids = [device.uuid for entry in entries for device in entry.devices if device.uuid]
        if len(set(uuids)) < len(uuids):
            raise self._wrong("host", "a uuid stands there twice")
        rules = tuple(self._rule(rule, f"rule[{n}]") for n, rule in enumerate(self._tables(content, "rule")))
        return Rules(rules=rules, max_age=float(age), hosts=hosts)

    def _rule(self, rule: Mapping[str, Any], where: str) -> Rule:
        self._only(rule, where, "alert", "match", "action", "scope")
        match = rule.get("match", {})
        if not isinstance(match, dict):
            raise self._wrong(f"{where}.match", 'give labels, as in { severity = "critical" }')
        return Rule(
            alert=self._text(rule, where, "alert"),
            action=RuleAction(self._one_of(rule, where, "action", [action.value for action in RuleAction])),
            match={label: self._values(values, f"{where}.match.{label}") for label, values in match.items()},
            scope=Scope(self._one_of(rule, where, "scope", [scope.value for scope in Scope], Scope.NAMED.value)),
        )

    def _host(self, entry: Mapping[str, Any], where: str) -> HostEntry:
        self._only(entry, where, "name", "aliases", "pods", "devices")
        devices = self._tables(entry, "devices", f"{where}.")
        return HostEntry(
            name=HostId(self._text(entry, where, "name")),
            aliases=self._values(entry.get("aliases", []), f"{where}.aliases"),
            pods=self._values(entry.get("pods", []), f"{where}.pods"),
            devices=tuple(self._device(device, f"{where}.devices[{n}]") for n, device in enumerate(devices)),
        )

    def _device(self, device: Mapping[str, Any], where: str) -> Device:
        self._only(device, where, "slot", "uuid", "pci_bus_id")
        slot = device.get("slot")
        if isinstance(slot, bool) or not isinstance(slot, int) or not 0 <= slot < 1024:
            raise self._wrong(f"{where}.slot", "give the local rank that uses it, 0 or more")
        return Device(
            slot=slot,
            uuid=self._text(device, where, "uuid", ""),
            pci_bus_id=self._text(device, where, "pci_bus_id", ""),
        )

    # -- small change -------------------------------------------------------------------------------------------------

    def _tables(self, table: Mapping[str, Any], key: str, where: str = "") -> list[Mapping[str, Any]]:
        found = table.get(key, [])
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found) or len(found) > _MOST:
            raise self._wrong(f"{where}{key}", f"give at most {_MOST} tables, each as [[{key}]]")
        return found

    def _text(self, table: Mapping[str, Any], where: str, key: str, default: str | None = None) -> str:
        found = table.get(key, default)
        if not isinstance(found, str) or (not found and default is None):
            raise self._wrong(f"{where}.{key}", "give a text")
        return found

    def _one_of(
        self, table: Mapping[str, Any], where: str, key: str, choices: list[str], default: str | None = None
    ) -> str:
        found = self._text(table, where, key, default)
        if found not in choices:
            raise self._wrong(f"{where}.{key}", f"there is {', '.join(choices)}")
        return found

    def _values(self, values: object, where: str) -> tuple[str, ...]:
        listed = [values] if isinstance(values, str) else values
        if not isinstance(listed, list) or not all(isinstance(value, str) for value in listed) or len(listed) > _MOST:
            raise self._wrong(where, "give a text or a list of texts")
        return tuple(listed)

    def _only(self, table: Mapping[str, Any], where: str, *known: str) -> None:
        for key in table:
            if key not in known:
                place = f"{where}.{key}" if where else key
                raise self._wrong(place, f"there is no such key; there is {', '.join(known)}")

    def _wrong(self, key: str, what: str) -> SettingsError:
        return SettingsError(f"--alert-rules {self._file}: {key}: {what}")
