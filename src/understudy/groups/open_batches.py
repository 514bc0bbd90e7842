"""Batches of messages that a step cut short has left open.

torch collects the messages of a batch (`batch_isend_irecv`, as pipelines use it) between its begin and its end. An
error in between leaves the group collecting, and forming it again does not change that: NCCL's takes the next message
into the old batch and says that it has come, so what should have been received is whatever was in that memory, and the
next batch is an error. So before a group is formed again its batch is ended. That sends nothing, because it is broken.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d


def close(group: dist.ProcessGroup, device: torch.device) -> None:
    c10d._world.pg_coalesce_state.pop(group, None)
    with contextlib.suppress(Exception):  # no batch is open, or it is, and the communicator is broken
        group._end_coalescing(device)
