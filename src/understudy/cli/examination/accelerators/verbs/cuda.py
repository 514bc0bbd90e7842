"""What only CUDA has. Untested: written from the documentation of torch and of NVIDIA, tried with stand-ins only."""

import mmap
import time
from typing import Any

import torch

from understudy.cli.examination.accelerators.verbs.held import Held

_SLEEP_CYCLES = 1 << 30  # about half a second
_BYTES = 256 << 20


def pinned_word(held: Held) -> dict[str, Any]:
    """A copy from pinned memory is queued behind a kernel that sleeps; the host changes the word meanwhile. Which value
    arrives?"""
    word = torch.zeros(1, dtype=torch.int64).pin_memory()
    arrived = torch.full((1,), -1, dtype=torch.int64, device=held.where)
    torch.cuda.synchronize(held.where)
    torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
    arrived.copy_(word, non_blocking=True)
    behind = torch.cuda.Event()  # type: ignore[no-untyped-call]
    behind.record()
    word.fill_(1)
    changed_in_time = not behind.query()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(held.where)
    return {"changed_in_time": changed_in_time, "arrived": int(arrived.item())}


def copies(held: Held) -> dict[str, Any]:
    """GB/s to the host and back: pageable memory, pinned memory, shared memory that was registered."""
    on_device = torch.zeros(_BYTES, dtype=torch.uint8, device=held.where)
    shared = mmap.mmap(-1, _BYTES)
    registered = torch.frombuffer(shared, dtype=torch.uint8)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    refused = int(runtime.cudaHostRegister(registered.data_ptr(), _BYTES, 0))
    kinds = {"pageable": torch.zeros(_BYTES, dtype=torch.uint8)}
    kinds["pinned"] = torch.zeros(_BYTES, dtype=torch.uint8).pin_memory()
    if refused == 0:
        kinds["registered"] = registered
    speeds = {}
    for name, on_host in kinds.items():
        speeds[f"{name}_to_host_gb_per_s"] = _speed(held, on_host, on_device)
        speeds[f"{name}_to_device_gb_per_s"] = _speed(held, on_device, on_host)
    if refused == 0:
        runtime.cudaHostUnregister(registered.data_ptr())
    return {"register_error": refused, **speeds}


def _speed(held: Held, into: torch.Tensor, source: torch.Tensor) -> float:
    into.copy_(source, non_blocking=True)
    torch.cuda.synchronize(held.where)
    began = time.perf_counter()
    for _ in range(3):
        into.copy_(source, non_blocking=True)
    torch.cuda.synchronize(held.where)
    return 3 * _BYTES / (time.perf_counter() - began) / 1e9


def context(held: Held) -> dict[str, Any]:
    """Seconds from the first use of the device to the end of a first kernel. Asked right after `take`, which makes it
    the current one."""
    began = time.perf_counter()
    torch.ones(1, device=held.where).add_(1)
    torch.cuda.synchronize(held.where)
    return {"seconds": time.perf_counter() - began}


def ballast(held: Held, gigabytes: int) -> dict[str, Any]:
    """Memory whose return can be seen from outside."""
    held.tensors["ballast"] = [torch.zeros(1 << 30, dtype=torch.uint8, device=held.where) for _ in range(gigabytes)]
    torch.cuda.synchronize(held.where)
    return {}
