"""Copies a value as its type describes it: what can change is copied, what cannot is shared.

The types that are understood are those of a serialisable state: dataclasses, frozen structs (events, commands),
dictionaries, sets, lists, tuples, enums, numbers, strings, and unions of these with None. A new field needs no line of
code here or elsewhere; a field of any other type is an error when the copier is made. Classes that mypyc has translated
describe less: `dict` without what is in it, and `type` for a union. There the value decides.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_Copier = Callable[[Any], Any]
_ATOMS = (int, float, str, bytes, bool, type(None))


def copied(value: _T) -> _T:
    """A copy of a dataclass, independent of the original."""
    return typing.cast(_T, _required(type(value))(value))


def _required(kind: Any) -> _Copier:
    copier = copier_of(kind)
    assert copier is not None, f"{kind} cannot change, so it needs no copy"
    return copier


@cache
def copier_of(kind: Any) -> _Copier | None:
    """None: values of this type cannot change, and may be shared."""
    if kind is None:
        return None
    while hasattr(kind, "__supertype__"):  # a NewType
        kind = kind.__supertype__
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _of_union(arguments)
    if origin is dict:
        return _of_dict(copier_of(arguments[1]))
    if origin in (set, list):
        assert copier_of(arguments[0]) is None, f"{kind}: its elements can change"
        return typing.cast(_Copier, origin)
    if origin in (tuple, frozenset):
        assert all(copier_of(part) is None for part in arguments if part is not Ellipsis), f"{kind} can change"
        return None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
        return None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return None if is_frozen(kind) else _of_dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, (*_ATOMS, enum.Enum)):
        return None
    raise TypeError(f"it is not known how to copy a {kind}")


def _by_value(value: Any) -> Any:
    kind: Any = type(value)
    copier = _ERASED[kind] if kind in _ERASED else copier_of(kind)
    return value if copier is None else copier(value)


_ERASED: dict[Any, _Copier | None] = {
    type: _by_value,
    dict: lambda values: {key: _by_value(value) for key, value in values.items()},
    set: set,
    list: list,
    tuple: None,
    frozenset: None,
}


def is_frozen(kind: type) -> bool:
    return bool(getattr(kind, "__dataclass_params__").frozen)  # noqa: B009  (it is not in the type's description)


def _of_union(kinds: tuple[Any, ...]) -> _Copier | None:
    copiers = [copier for kind in kinds if (copier := copier_of(kind)) is not None]
    if not copiers:
        return None
    (copier,) = copiers  # one of them and None
    return lambda value: None if value is None else copier(value)


def _of_dict(inner: _Copier | None) -> _Copier:
    if inner is None:
        return dict
    return lambda values: {key: inner(value) for key, value in values.items()}


def _of_field(kind: Any, hint: Any) -> _Copier | None:
    is_translated = hasattr(kind, "__mypyc_attrs__")
    return _ERASED[hint] if is_translated and hint in _ERASED else copier_of(hint)


def _of_dataclass(kind: Any) -> _Copier:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    copiers = [(name, copier) for name in names if (copier := _of_field(kind, hints[name])) is not None]
    shared = [name for name in names if name not in dict(copiers)]

    def copy(value: Any) -> Any:
        twin: Any = kind.__new__(kind)  # `dataclasses.replace` takes much longer, and the explorer copies very often
        for name in shared:
            setattr(twin, name, getattr(value, name))
        for name, copier in copiers:
            setattr(twin, name, copier(getattr(value, name)))
        return twin

    return copy
