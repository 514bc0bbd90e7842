"""What an operation will return, before it is done: it is tried once with zeros of the same shapes.

So the strides are those of the real kernels, and a wrong shape is an error of the host, as on a GPU. The outcome is
kept by everything that can have influence on it: shapes, strides, types and all other arguments, but not numbers of
type float. Where zeros will not do (a matrix that must be invertible), there is no outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Made:
    """A new tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Given:
    """The tensor that was given at this place, counted through all arguments."""

    place: int


@dataclass(frozen=True, slots=True)
class PartOf:
    """A view of the tensor that was given at this place, though the operation does not say so in its schema."""

    place: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


Outcome = Any  # Made, Given, PartOf, another value, or a list or tuple of such


def change_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same value with each tensor changed. Arguments of operators are nested in lists and tuples only."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(change_tensors(each, change) for each in value)
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    change_tensors(value, found.append)
    return found


class Rehearsals:
    def __init__(self) -> None:
        self._kept: dict[Any, Outcome | None] = {}

    def outcome(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Outcome | None:
        """None: it cannot be told before."""
        key = (func, *map(_key, args), *((name, _key(value)) for name, value in kwargs.items()))
        try:
            hash(key)
        except TypeError:
            return _try(func, args, kwargs)
        if key not in self._kept:
            self._kept[key] = _try(func, args, kwargs)
        return self._kept[key]


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, float):
        return float
    return type(value), value


def _try(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Outcome | None:
    zeros: list[torch.Tensor] = []

    def make(like: torch.Tensor) -> torch.Tensor:
        zeros.append(_zeros(like))
        return zeros[-1]

    made_args, made_kwargs = change_tensors(tuple(args), make), {k: change_tensors(v, make) for k, v in kwargs.items()}
    try:
        returned = func(*made_args, **made_kwargs)
    except Exception:
        return None
    return change_tensors((returned,), lambda tensor: _described(tensor, zeros))


def _zeros(like: torch.Tensor) -> torch.Tensor:
    length = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True) if size)
    return torch.zeros(max(length, 1), dtype=like.dtype).as_strided(like.shape, like.stride())


def _described(tensor: torch.Tensor, zeros: list[torch.Tensor]) -> Made | Given | PartOf:
    for place, given in enumerate(zeros):
        if tensor is given:
            return Given(place)
    for place, given in enumerate(zeros):
        if tensor.untyped_storage()._cdata == given.untyped_storage()._cdata:
            offset = int(tensor.storage_offset()) - int(given.storage_offset())
            return PartOf(place, tuple(tensor.shape), tensor.stride(), offset)
    return Made(tuple(tensor.shape), tensor.stride(), tensor.dtype)
