"""Turns nested state (as state_dict gives it) into plain data plus a list of tensors, and back. No pickle.

Plain data are None, bool, int, float, str, bytes, list, tuple, dict with int or str keys; tensors are replaced by
their place in the list. Subclasses (a NumPy float, a named tuple) become the plain type. Anything else is refused with
the path at which it stands.
"""

import enum
import functools
from typing import Any

import msgspec
import torch

from understudy.errors import ProtectError
from understudy.state.digests import tensor_bytes

_TENSOR, _TUPLE, _DICT, _LARGE = "t", "u", "d", "i"
_PLAIN: tuple[Any, ...] = (bool, int, float, str, bytes)
_AS_IT_IS = frozenset((type(None), bool, float, str, bytes))
_SEQUENCES = (list, tuple, set)


class _Refused(Exception):
    """`way`: from the value that cannot be sent outwards, as it is put together for a person."""

    def __init__(self, trouble: str) -> None:
        self.trouble, self.way = trouble, list[str]()


def flatten(value: Any, path: str, tensors: list[torch.Tensor]) -> Any:
    """`value` without its tensors, which are appended to `tensors`. Loops of windows do this before each part: so where
    something stands is put into words only if it is refused."""
    try:
        return _flatten(value, tensors)
    except _Refused as refused:
        raise ProtectError(path + "".join(reversed(refused.way)) + refused.trouble) from None


def _flatten(value: Any, tensors: list[torch.Tensor]) -> Any:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else [_LARGE, hex(value)]
    if isinstance(value, dict):
        return [_DICT, _items(value, tensors)]
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return [_TENSOR, len(tensors) - 1]
    for sequence in _SEQUENCES:
        if isinstance(value, sequence):
            return [_TUPLE, sequence.__name__, _members(value, tensors)]
    for plain in _PLAIN:
        if isinstance(value, plain):
            return _flatten(value.value if isinstance(value, enum.Enum) else plain(value), tensors)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()  # a NumPy scalar
    raise _Refused(
        f" is a {kind.__name__}, which cannot be sent without pickle; keep it out of the state_dict, "
        "or protect the script's own functions with job.protect(save=..., load=...)"
    )


def _items(values: dict[Any, Any], tensors: list[torch.Tensor]) -> list[Any]:
    items, key = [], None
    try:
        for key, item in values.items():
            if not isinstance(key, int | str):
                raise _Refused(f" has a key of type {type(key).__name__}; only int and str can be sent without pickle")
            items.append([key, item if type(item) in _AS_IT_IS else _flatten(item, tensors)])
    except _Refused as refused:
        if isinstance(key, int | str):
            refused.way.append(f".{key}")
        raise
    return items


def _members(values: Any, tensors: list[torch.Tensor]) -> list[Any]:
    members = list[Any]()
    try:
        for item in values:
            members.append(item if type(item) in _AS_IT_IS else _flatten(item, tensors))
    except _Refused as refused:
        refused.way.append(f"[{len(members)}]")
        raise
    return members


def unflatten(plain: Any, tensors: list[torch.Tensor]) -> Any:
    if not isinstance(plain, list):
        return plain
    match plain:
        case ["t", int(place)]:
            return tensors[place]
        case ["i", str(digits)]:
            return int(digits, 16)
        case ["d", list(items)]:
            return {key: unflatten(item, tensors) for key, item in items}
        case ["u", kind, list(items)]:
            make = {"list": list, "tuple": tuple, "set": set}.get(str(kind), list)
            return make(unflatten(item, tensors) for item in items)
    raise ProtectError(f"malformed state: {str(plain)[:80]}")


def tensors_in(plain: Any) -> int:
    """How many tensors `unflatten` will ask for."""
    match plain:
        case ["t", int()]:
            return 1
        case ["d", list(items)]:
            return sum(tensors_in(item) for _, item in items)
        case ["u", _, list(items)]:
            return sum(tensors_in(item) for item in items)
    return 0


def pack(value: Any, path: str) -> bytes:
    """Everything in one piece, tensors included. `path` is named in errors."""
    tensors: list[torch.Tensor] = []
    plain = flatten(value, path, tensors)
    parts = [(_name(tensor.dtype), tuple(tensor.shape), bytes(tensor_bytes(tensor))) for tensor in tensors]
    return msgspec.msgpack.encode((plain, parts))


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fits(value: Any, most: int) -> bool:
    """Can it be packed, and do its tensors have no more bytes than that?"""
    if type(value) in _AS_IT_IS:
        return True
    tensors: list[torch.Tensor] = []
    try:
        _flatten(value, tensors)
    except _Refused:
        return False
    return sum(tensor.nbytes for tensor in tensors) <= most


def unpack(packed: bytes) -> Any:
    plain, parts = msgspec.msgpack.decode(packed)
    return unflatten(plain, [_tensor(*part) for part in parts])


def _tensor(dtype: str, shape: list[int], content: bytes) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)
