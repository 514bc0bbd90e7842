"""What torch's own ProcessGroupNCCL2 says and does without a GPU, as one line of JSON: `python nccl_facts.py`.

It ends by `os._exit`, and keeps every object until then: taking one apart without a driver ends the process.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import HashStore, ReconfigureOptions, Store

_LONG, _SHORT = 1.5, 0.2  # seconds
_kept: list[Any] = []


def make(store: Store, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options.enable_reconfigure = True
    options._timeout = timedelta(seconds=30)
    _kept.append(c10d.ProcessGroupNCCL2(store, rank, size, options))
    return _kept[-1]


def error_of(call: Callable[[], object]) -> str:
    """Empty if there is none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def reconfigure(backend: Any, unique: int, handles: list[str], seconds: float) -> tuple[str, float]:
    """The error and how long it took."""
    options = ReconfigureOptions()
    options.uuid, options.handles, options.timeout = unique, handles, timedelta(seconds=seconds)
    begun = time.monotonic()
    return error_of(lambda: backend.reconfigure(options).wait()), time.monotonic() - begun


def of_options() -> dict[str, Any]:
    backend = make(HashStore(), 0, 2)
    backend.options.enable_reconfigure = False
    off = backend.options.enable_reconfigure
    backend.options.enable_reconfigure = True
    return {
        "name": backend.name(),
        "switched off": off,
        "switched on": backend.options.enable_reconfigure,
        "blocking": backend.options.config.blocking,
        "supports": [backend.supports_reconfigure, backend.supports_abort_hooks, backend.supports_coalescing],
    }


def of_calls_before_forming() -> dict[str, str]:
    backend, tensor = make(HashStore(), 0, 2), torch.zeros(1)
    return {
        "allreduce": error_of(lambda: backend.allreduce([tensor])),
        "broadcast": error_of(lambda: backend.broadcast([tensor])),
        "barrier": error_of(backend.barrier),
        "send": error_of(lambda: backend.send([tensor], 1, 0)),
        "recv": error_of(lambda: backend.recv([tensor], 1, 0)),
    }


def of_forming() -> dict[str, Any]:
    store = HashStore()
    one, other = make(store, 0, 2), make(store, 1, 2)
    before = other.get_reconfigure_handle()
    waits = reconfigure(other, 5, [one.get_reconfigure_handle(), before], _SHORT)
    first = reconfigure(one, 6, [one.get_reconfigure_handle(), other.get_reconfigure_handle()], _SHORT)
    again = make(store, 0, 2)
    second = reconfigure(again, 6, [again.get_reconfigure_handle(), other.get_reconfigure_handle()], _SHORT)
    return {
        "handle": before,
        "handle again": make(HashStore(), 1, 2).get_reconfigure_handle(),
        "rank 1 without rank 0": waits,
        "handle after a failure": other.get_reconfigure_handle(),
        "rank 0": first,
        "claimed": store.check(["nccl2_reconfigure/6/claimed"]),
        "a used uuid": second,
        "error after a failure": str(other.get_error()),
    }


def of_the_mutex() -> dict[str, Any]:
    """Two calls on one backend; meanwhile this thread counts, which it cannot while another one has the GIL."""
    store = HashStore()
    backend = make(store, 1, 2)
    handles = [make(store, 0, 2).get_reconfigure_handle(), backend.get_reconfigure_handle()]
    first = threading.Thread(target=reconfigure, args=(backend, 10, handles, _LONG))
    second_took: list[float] = []
    second = threading.Thread(target=lambda: second_took.append(reconfigure(backend, 11, handles, _SHORT)[1]))
    first.start()
    time.sleep(0.1)
    second.start()
    counted = 0
    while first.is_alive():
        time.sleep(0.01)
        counted += 1
    second.join()
    return {"second call took": second_took[0], "counted": counted}


def of_abort() -> dict[str, Any]:
    backend = make(HashStore(), 0, 2)
    seen: list[str] = []
    backend.register_abort_hook(1, lambda: seen.append(str(backend.get_error())))
    before = str(backend.get_error())
    first = error_of(backend.abort)
    after = str(backend.get_error())
    second = error_of(backend.abort)
    return {
        "before": before, "first": first, "hook saw": seen, "after": after, "second": second,
        "after the second": str(backend.get_error()), "handle": backend.get_reconfigure_handle(),
        "call": error_of(lambda: backend.allreduce([torch.zeros(1)])),
    }  # fmt: skip


def of_names() -> dict[str, Any]:
    made_by = {}
    for name in ("nccl", "nccl2", "nccl-legacy"):
        c10d.Backend._ensure_backend_registered(name)
        made_by[name] = [
            c10d.Backend._plugins[name.upper()].creator_fn.__name__,
            c10d.Backend.backend_type_map[name].name,
        ]
    return made_by


def of_a_group() -> dict[str, Any]:
    """As `init_process_group` makes it."""
    dist.init_process_group("nccl", rank=0, world_size=1, store=HashStore(), enable_reconfigure=True)
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cuda"))
    _kept.append(group)
    return {
        "type": type(backend).__name__,
        "flag": backend.options.enable_reconfigure,
        "bound": group.bound_device_id is not None,
        "tensor of the host": error_of(lambda: dist.all_reduce(torch.zeros(1))),
        "new_group without the flag": error_of(lambda: dist.new_group([0])),
    }


def of_batches() -> dict[str, Any]:
    """Of the group that `of_a_group` has made: a batch that is never ended."""
    group, device = _kept[-1], torch.device("cuda")
    return {
        "end of none": error_of(lambda: group._end_coalescing(device)),
        "begin": error_of(lambda: group._start_coalescing(device)),
        "second begin": error_of(lambda: group._start_coalescing(device)),
        "end": error_of(lambda: group._end_coalescing(device)),
        "begin behind it": error_of(lambda: group._start_coalescing(device)),
    }


def main() -> None:
    if not dist.is_nccl_available():
        facts: dict[str, Any] = {}
    elif sys.argv[1:] == ["names"]:
        facts = {"names": of_names()}
    else:
        facts = {
            "options": of_options(), "calls": of_calls_before_forming(), "forming": of_forming(),
            "mutex": of_the_mutex(), "abort": of_abort(), "names": of_names(), "group": of_a_group(),
            "batches": of_batches(),
        }  # fmt: skip
    print(json.dumps(facts), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
