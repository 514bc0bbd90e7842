"""Everything that versions of Understudy say to each other over the network or leave for each other in the store, as
data: which fields each message has, which of them its reader requires, which values an enumeration has.

`python -P vocabulary.py` prints that of the version that is installed, even of one which does not have this file.
`breaks` compares two of them by the rule of `understudy.wire.versions`.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec.inspect as mi
from msgspec import NODEFAULT

Vocabulary = dict[str, Any]  # of JSON, for it is told by another process
_SETTINGS = "Policy"
_FORMER_TYPES = {"Kept": "PersistedJob"}  # that were renamed: what is in them must be compared all the same


def describe() -> Vocabulary:
    """Of the version that is imported here."""
    from understudy.ledger.records import TransferRecord
    from understudy.wire import messages, versions

    hosts, store = _module("wire.host_messages", "wire.cluster"), _module("coordinator.persisted", "coordinator.kept")
    kinds = [*get_args(hosts.FromHost), *get_args(hosts.ToHost), *get_args(messages.FromAgent)]
    persisted = store.PersistedJob if hasattr(store, "PersistedJob") else store.Kept
    events = getattr(hosts, "_EVENTS", {}).values()  # of versions in which `Happened` does not name them
    told = [*kinds, *events, persisted, TransferRecord]
    known: Vocabulary = {}
    for kind in told:
        _describe(mi.type_info(kind), known)
    return {"protocol": versions.PROTOCOL, "types": known}


def _module(name: str, former: str) -> Any:
    """`former`: what the previous release calls it."""
    try:
        return importlib.import_module(f"understudy.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"understudy.{former}")


def _name(cls: type) -> str:
    return _FORMER_TYPES.get(cls.__name__, cls.__name__)


def _describe(kind: Any, known: Vocabulary) -> str:
    """A short name of a type; what it consists of is put into `known`."""
    match kind:
        case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
            _describe_fields(kind, known)
            return _name(kind.cls)
        case mi.EnumType(cls=cls):
            known[cls.__name__] = {"values": sorted(str(member.value) for member in cls)}
            return cls.__name__
        case mi.LiteralType(values=values):
            return f"one of {sorted(map(str, values))}"
        case mi.UnionType(types=types) if all(isinstance(one, mi.StructType) for one in types):
            for one in types:
                _describe(one, known)
            return "a message"  # of any kind: one that only one version knows is ignored there too
        case mi.UnionType(types=types):
            return " | ".join(sorted(_describe(one, known) for one in types))
        case mi.DictType(key_type=key, value_type=value):
            return f"{{{_describe(key, known)}: {_describe(value, known)}}}"
        case mi.TupleType(item_types=items):
            return f"({', '.join(_describe(item, known) for item in items)})"
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item) | mi.SetType(item_type=item):
            return f"[{_describe(item, known)}]"
        case mi.FrozenSetType(item_type=item):
            return f"[{_describe(item, known)}]"
    return type(kind).__name__.removesuffix("Type").lower()


def _describe_fields(kind: Any, known: Vocabulary) -> None:
    name = _name(kind.cls)
    if name in known:
        return
    described: Vocabulary = {}
    known[name] = {"strict": getattr(kind, "forbid_unknown_fields", False), "fields": described}
    for field in kind.fields:
        told: Vocabulary = {"type": _describe(field.type, known), "required": field.required}
        if name == _SETTINGS and not field.required:
            told["default"] = repr(field.default if field.default is not NODEFAULT else field.default_factory())
        described[field.encode_name] = told


def breaks(old: Vocabulary, new: Vocabulary) -> list[str]:
    """What one of the two could not read of the other, as sentences. Kinds of messages that only one has are no break:
    the other ignores them."""
    found: list[str] = []
    for name in sorted(old["types"].keys() & new["types"].keys()):
        before, after = old["types"][name], new["types"][name]
        if "values" in before or "values" in after:
            found += _changed_values(name, before.get("values", []), after.get("values", []))
        else:
            found += _cannot_read(name, reader=before, writer=after, version="the previous release")
            found += _cannot_read(name, reader=after, writer=before, version="this version")
            found += _changed_fields(name, before["fields"], after["fields"])
    return found


def _changed_values(name: str, before: list[str], after: list[str]) -> Iterator[str]:
    for value in sorted(set(before) ^ set(after)):
        yield f"only {'the previous release' if value in before else 'this version'} knows {name} {value!r}"


def _cannot_read(name: str, reader: Mapping[str, Any], writer: Mapping[str, Any], version: str) -> Iterator[str]:
    for field, told in reader["fields"].items():
        if told["required"] and field not in writer["fields"]:
            yield f"{version} requires {name}.{field}, which the other does not send"
    if reader["strict"]:
        for field in writer["fields"].keys() - reader["fields"].keys():
            yield f"{version} refuses {name} with the field {field}, which the other sends"


def _changed_fields(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for field in sorted(before.keys() & after.keys()):
        for what in ("type", "default"):
            was, now = before[field].get(what), after[field].get(what)
            if was != now:
                yield f"the {what} of {name}.{field} was {was} and is {now}"


if __name__ == "__main__":
    json.dump(describe(), sys.stdout)
