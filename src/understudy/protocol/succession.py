"""Which fields of the state a successor gets, as a rule beside each field.

A field is *kept* unless it says otherwise. A *forgotten* field begins anew: members and hosts tell its content again
when they have found the new coordinator, or only the old one could use it. A *moment* is a time on the clock of one
coordinator: it is kept as seconds from now, because two coordinators do not share a clock.
"""

import dataclasses
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from understudy.foundation.copying import copied, is_frozen

_T = TypeVar("_T")
FORGOTTEN = {"successor": "forgets it"}
MOMENT = {"successor": "gets it as seconds from now"}


def for_successor(state: _T, at: float) -> _T:
    """A copy of what a successor may know."""
    left = copied(state)
    _change(left, forget=True, shift=-at)
    return left


def from_predecessor(state: _T, at: float) -> _T:
    """The same on the clock of the successor."""
    found = copied(state)
    _change(found, forget=False, shift=at)
    return found


def _change(value: Any, forget: bool, shift: float) -> None:
    kind: Any = type(value)
    for field, inside in _rules(kind):
        rule = field.metadata.get("successor")
        if rule == FORGOTTEN["successor"]:
            if forget:
                setattr(value, field.name, _default(field))
        elif rule == MOMENT["successor"]:
            moved = getattr(value, field.name) + shift
            setattr(value, field.name, max(0.0, moved) if forget else moved)
        elif inside is not None:
            for part in inside(getattr(value, field.name)):
                _change(part, forget, shift)


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    assert field.default is not dataclasses.MISSING, f"{field.name} is forgotten and has no default"
    return field.default


_Inside = Callable[[Any], list[Any]]


@cache
def _rules(kind: Any) -> list[tuple["dataclasses.Field[Any]", _Inside | None]]:
    """Of every field, and how to come to the dataclasses inside it that have rules of their own."""
    hints = typing.get_type_hints(kind)
    return [(field, _inside(hints[field.name])) for field in dataclasses.fields(kind)]


def _inside(hint: Any) -> _Inside | None:
    if _has_rules(hint):
        return lambda value: [value]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict and _has_rules(arguments[1]):
        return lambda values: list(values.values())
    if hint is dict:  # of translated code, which does not say of what (`foundation.copying`)
        return lambda values: [value for value in values.values() if _has_rules(type(value))]
    return None


def _has_rules(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint) and not is_frozen(hint)
