"""A spare that has warmed up must be no different from a process that has not."""

import random
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from understudy.state.digests import digest_rng
from understudy.state.protected_state import local
from understudy.training.warmup import warm_up


def test_nothing_is_left_behind() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before, hook = digest_rng(), sys.excepthook
    warm_up()
    assert digest_rng() == before
    assert sys.excepthook is hook
    assert not dist.is_initialized()


@pytest.mark.parametrize("names", [("replicate", "shard"), ("rep", "shard"), ("dp_replicate", "dp_shard")])
def test_a_mesh_that_is_made_later_knows_its_own_place(names: tuple[str, str]) -> None:
    """torch finds an equal mesh of an earlier world again, with the place that this process had in it."""
    warm_up()
    dist.init_process_group("fake", rank=3, world_size=4, store=HashStore())
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        model = nn.Linear(8, 8)
        fully_shard(model, mesh=mesh)
        weight = model.weight
        assert weight.device_mesh.get_coordinate() == mesh.get_coordinate() == (1, 1)  # type: ignore[attr-defined]
        assert local(weight).shape == (4, 8)
    finally:
        dist.destroy_process_group()
