"""Ways to the content of a tensor that do not go through torch's dispatcher.

What a GPU would refuse or what would show memory before the queue has written it raises `DataRace`, from any thread: a
view by NumPy, an address, a list. That is stricter than a GPU, which waits before it makes a list. What copies on a GPU
and waits for that (pickling, a deep copy, `torch.save`, a single number that another thread asks for) waits here too.

torch asks for addresses itself, to compare memory; it is let. A list that torch makes itself (of the ranks of a device
mesh, of the places of a shard) waits, as it would on a GPU.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from understudy_testkit.queued_device.memory import DeviceMemory, is_plain
from understudy_testkit.queued_device.patches import Patches
from understudy_testkit.queued_device.stream import Stream

_MUST_NOT = ("numpy", "tolist", "data_ptr", "__dlpack__")
_WAITING_TENSOR = ("item", "__deepcopy__", "__reduce_ex__")
_WAITING_STORAGE = (
    "clone",
    "copy_",
    "__deepcopy__",
    "__getitem__",
    "__setitem__",
    "__reduce__",
    "tolist",
    "_write_file",
)


class DataRace(RuntimeError):
    """Something reads memory into which the queue has still to write."""


def watch(stream: Stream, memory: DeviceMemory, patches: Patches) -> None:
    for name in _MUST_NOT:
        patches.put(torch.Tensor, name, functools.partial(_refusing, name=name, stream=stream, memory=memory))
    for owner, names in ((torch.Tensor, _WAITING_TENSOR), (torch.UntypedStorage, _WAITING_STORAGE)):
        for name in names:
            patches.put(owner, name, lambda before: _waiting(before, stream, memory))
    patches.put(torch, "save", lambda before: _after_the_queue(before, stream))


def _refusing(before: Callable[..., Any], name: str, stream: Stream, memory: DeviceMemory) -> Callable[..., Any]:
    @functools.wraps(before)
    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        storage = _storage_of(tensor)
        if storage is not None and memory.is_awaited(storage):
            if name == "tolist" and _asked_by_torch():
                stream.drain()
            elif name != "data_ptr" or not _asked_by_torch():
                raise DataRace(
                    f"{name}() of a tensor of shape {tuple(tensor.shape)} into which the queue has still to write"
                )
        return before(tensor, *args, **kwargs)

    return read


def _asked_by_torch() -> bool:
    return bool(sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] == "torch")


def _waiting(before: Callable[..., Any], stream: Stream, memory: DeviceMemory) -> Callable[..., Any]:
    @functools.wraps(before)
    def read(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if any(memory.is_awaited(storage) for storage in map(_storage_of, (owner, *args)) if storage is not None):
            stream.drain()
        return before(owner, *args, **kwargs)

    return read


def _storage_of(value: Any) -> torch.UntypedStorage | None:
    if isinstance(value, torch.UntypedStorage):
        return value
    if type(value) in (torch.Tensor, torch.nn.Parameter) and is_plain(value):
        return value.untyped_storage()  # type: ignore[no-any-return]
    return None


def _after_the_queue(before: Callable[..., Any], stream: Stream) -> Callable[..., Any]:
    @functools.wraps(before)
    def save(*args: Any, **kwargs: Any) -> Any:
        stream.drain()
        return before(*args, **kwargs)

    return save
