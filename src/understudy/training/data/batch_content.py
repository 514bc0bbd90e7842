"""What is in a batch, whatever the script's batches are made of: a digest of it, and a copy.

Knows tensors, arrays and plain values, and lists, tuples, mappings and dataclasses of them. `stateful_loader` calls it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from understudy.state.digests import tensor_bytes
from understudy.state.protected_state import local

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def digest_batch(batch: Any) -> int | None:
    """63 bits; equal digests mean equal content. None: there is something in the batch that is not known here.

    Tensors and arrays are read where they are; of a DTensor only what this rank holds."""
    state = xxhash.xxh3_64()
    try:
        for part in _bytes_of(batch):
            state.update(part)
    except TypeError:
        return None
    return state.intdigest() >> 1


def _bytes_of(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}|".encode()
        yield tensor_bytes(local(value))
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"array {value.dtype} {value.shape}|".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}|".encode()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}|".encode()
        for key, part in value.items():
            yield from _bytes_of(key)
            yield from _bytes_of(part)
    elif isinstance(value, list | tuple):
        yield f"sequence {len(value)}|".encode()
        for part in value:
            yield from _bytes_of(part)
    elif _is_dataclass(value):
        yield f"{type(value).__name__}|".encode()
        for field in dataclasses.fields(value):
            yield from _bytes_of(getattr(value, field.name))
    else:
        raise TypeError(f"a {type(value).__name__} has no bytes")


def copy_batch(batch: Any) -> Any:
    """A batch with equal content that shares nothing with this one. TypeError for what is not known.

    (`copy.deepcopy` would copy all of the memory of which a tensor is a view.)"""
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone().requires_grad_(batch.requires_grad)
    if isinstance(batch, np.ndarray) and not batch.dtype.hasobject:
        return batch.copy()
    if isinstance(batch, _PLAIN):
        return batch
    if isinstance(batch, Mapping):
        parts = {key: copy_batch(part) for key, part in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, list | tuple):
        items = [copy_batch(part) for part in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*items)
        return items if isinstance(batch, list) else tuple(items)
    if _is_dataclass(batch):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: copy_batch(getattr(batch, name)) for name in fields})
    raise TypeError(f"a {type(batch).__name__} cannot be copied")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
