"""What a spare does while nobody needs it: import everything heavy and run the lazy parts of the engines once.

Nearly all of the time that a cold replacement needs is Python imports that happen lazily (the first AdamW alone
imports hundreds of modules). Recovery time is a matter of the spare's warmth.
"""

import importlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

_HEAVY = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.device_mesh")


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
