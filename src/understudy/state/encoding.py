"""Turns nested state (as state_dict gives it) into plain data plus a list of tensors, and back. No pickle.

Plain data are None, bool, int, float, str, bytes, list, tuple, dict with int or str keys; tensors are replaced by
their place in the list. Subclasses (a NumPy float, a named tuple) become the plain type. Anything else is refused with
the path at which it stands.
"""

import enum
from typing import Any

import msgspec
import torch

from understudy.errors import ProtectError
from understudy.state.digests import tensor_bytes

_TENSOR, _TUPLE, _DICT, _LARGE = "t", "u", "d", "i"
_PLAIN: tuple[Any, ...] = (bool, int, float, str, bytes)
_SEQUENCES = (list, tuple, set)


def flatten(value: Any, path: str, tensors: list[torch.Tensor]) -> Any:
    """`value` without its tensors, which are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return [_TENSOR, len(tensors) - 1]
    if value is None or type(value) in _PLAIN:
        return [_LARGE, hex(value)] if type(value) is int and not -(1 << 63) <= value < 1 << 64 else value
    for plain in _PLAIN:
        if isinstance(value, plain):
            return flatten(value.value if isinstance(value, enum.Enum) else plain(value), path, tensors)
    if isinstance(value, dict):
        return [_DICT, [[_key(key, path), flatten(item, f"{path}.{key}", tensors)] for key, item in value.items()]]
    for sequence in _SEQUENCES:
        if isinstance(value, sequence):
            items = [flatten(item, f"{path}[{i}]", tensors) for i, item in enumerate(value)]
            return [_TUPLE, sequence.__name__, items]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()  # a NumPy scalar
    raise ProtectError(
        f"{path} is a {type(value).__name__}, which cannot be sent without pickle; keep it out of the state_dict, "
        "or protect the script's own functions with job.protect(save=..., load=...)"
    )


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
    parts = [
        (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), bytes(tensor_bytes(tensor)))
        for tensor in tensors
    ]
    return msgspec.msgpack.encode((plain, parts))


def unpack(packed: bytes) -> Any:
    plain, parts = msgspec.msgpack.decode(packed)
    return unflatten(plain, [_tensor(*part) for part in parts])


def _tensor(dtype: str, shape: list[int], content: bytes) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def _key(key: Any, path: str) -> int | str:
    if isinstance(key, int | str):
        return key
    raise ProtectError(f"{path} has a key of type {type(key).__name__}; only int and str can be sent without pickle")
