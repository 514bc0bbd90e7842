"""The warm-up of a spare: it imports everything heavy, runs the lazy parts of the engines once, and prefaults memory.

Nearly all of the time that a cold replacement needs is Python imports that happen lazily (the first AdamW alone
imports hundreds of modules). Recovery time is a matter of how warm the spare is.

A joiner allocates everything that a rank holds (parameters, gradients, optimizer state, buckets) within a moment. On a
CPU, half of that moment is the kernel handing out and clearing fresh pages. A spare therefore touches as much memory as
a rank holds and gives it back to the allocator, which is told to keep it: pages that were touched once need no page
faults later. On other C libraries than glibc nothing happens.
"""

import ctypes
import importlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

_HEAVY = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.device_mesh")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameters of glibc's mallopt
_KEEP_ALL = 2**31 - 1
# Where glibc's own, moving thresholds end up in a process that has freed large tensors. Its initial values would make
# every activation over 128 KiB a mapping of its own, and this rank slower than the others.
_AS_IN_A_LONG_RUN = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20}


def load_what_is_heavy() -> None:
    for module in _HEAVY:
        importlib.import_module(module)


def warm_up() -> None:
    """Leaves no group, no random state, no parameter and no hook behind."""
    if dist.is_initialized():
        return  # the script made its own groups before join(): its world is not ours to play with
    load_what_is_heavy()
    show_error = sys.excepthook  # every init_process_group wraps it, to print the rank that it was given
    with torch.random.fork_rng(devices=[]):
        _warm_ddp()
        _warm_fsdp()
    sys.excepthook = show_error


def _warm_ddp() -> None:
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    try:
        _one_step(DistributedDataParallel(_small_model()))
    finally:
        dist.destroy_process_group()


def _warm_fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("fake", rank=0, world_size=4, store=HashStore())
    try:
        # torch keeps a mesh, with the place of this rank in it, for every later mesh that is equal: no script may use
        # these names, or it would get rank 0's place.
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("understudy-warm-up-0", "understudy-warm-up-1"))
        model = _small_model()
        fully_shard(model, mesh=mesh)
        _one_step(model)
    finally:
        dist.destroy_process_group()


def _small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8))


def _one_step(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


# -- memory -----------------------------------------------------------------------------------------------------------


def prefault(count: int) -> None:
    """Make `count` bytes resident and keep them inside this process."""
    if not _mallopt(_MMAP_MAX, 0) or not _mallopt(_TRIM_THRESHOLD, _KEEP_ALL):
        return
    block = torch.empty(count, dtype=torch.uint8)
    block[::4096] = 1
    del block


def allocate_normally() -> None:
    """The rank is taken over and has committed: memory that is freed from now on goes back to the system as usual."""
    for parameter, value in _AS_IN_A_LONG_RUN.items():
        _mallopt(parameter, value)


def _mallopt(parameter: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(parameter, value))
    except (OSError, AttributeError):
        return False
