"""Digests of tensors: equal digests mean equal bytes. 128 bits of xxh3, fast enough to take on every step in tests.

xxh3 is no defence against an adversary; it detects corruption and proves equality between honest processes.
"""

import random
from collections.abc import Iterable

import numpy as np
import torch
import xxhash

from understudy.devices import in_use
from understudy.devices.memory import host_bytes


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a (local) tensor without copying them, where it is contiguous and in host memory."""
    if tensor.dtype is torch.uint8 and tensor.dim() == 1 and tensor.is_cpu and tensor.is_contiguous():
        return memoryview(tensor.numpy().data)  # a chunk of a transfer, of which there are many
    return host_bytes(tensor)


def digest_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """One digest over names, types, shapes and bytes."""
    state = xxhash.xxh3_128()
    for name, tensor in named:
        state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        state.update(tensor_bytes(tensor))
    return state.hexdigest()


def digest_one(tensor: torch.Tensor) -> bytes:
    return xxhash.xxh3_128_digest(tensor_bytes(tensor))


def digest_text(text: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(text)


def number_of(content: bytes) -> int:
    """A digest that fits into 63 bits and is never 0."""
    return (xxhash.xxh3_64_intdigest(content) >> 1) or 1


def digest_rng() -> str:
    """The state of every generator that derived seeding sets: torch (the device in use, too), Python, NumPy."""
    state = xxhash.xxh3_128()
    state.update(tensor_bytes(torch.get_rng_state()))
    for device in in_use.devices():
        for stream in device.random_streams():
            state.update(tensor_bytes(stream))
    state.update(repr(random.getstate()).encode())
    kind, keys, position, *_ = np.random.get_state()
    state.update(f"{kind}|{position}".encode())
    state.update(np.ascontiguousarray(keys))  # type: ignore[arg-type]
    return state.hexdigest()
