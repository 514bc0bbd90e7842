"""Places where torch's own C++ reads device memory as if it were the host's, because the device is called `cpu`.

DDP's reducer copies small tables to its device and back (a comparison of shapes, the order of buckets, which
parameters were used). On a GPU such a copy waits. Here the copy is the same tensor, so the queue is kept empty while
that code runs: every operation is done before the call that asked for it returns.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.parallel.distributed as ddp
from torch._C._distributed_c10d import Reducer

from understudy_testkit.queued_device.patches import Patches
from understudy_testkit.queued_device.stream import Stream


def watch(stream: Stream, patches: Patches) -> None:
    patches.put(ddp, "_verify_param_shape_across_processes", lambda before: _in_step(before, stream))
    patches.put(Reducer, "_rebuild_buckets", lambda before: _in_step(before, stream))


def _in_step(before: Callable[..., Any], stream: Stream) -> Callable[..., Any]:
    @functools.wraps(before)
    def run(*args: Any, **kwargs: Any) -> Any:
        with stream.in_step():
            return before(*args, **kwargs)

    return run
