"""A script hears itself in a group that is a world of one."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from understudy.groups.alone import StandIns


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_script_hears_itself_from_all_others(world: dist.ProcessGroup) -> None:
    former, stand_ins = vars(dist.ProcessGroup)["allgather"], StandIns()
    stand_ins.begin(world, rank=2, size=3, device=torch.device("cpu"))
    heard = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(heard, torch.ones(1))
    assert torch.cat(heard).tolist() == [1, 1, 1]
    world.broadcast([torch.ones(1)], dist.BroadcastOptions()).wait()
    stand_ins.end()
    assert vars(dist.ProcessGroup)["allgather"] is former
    with pytest.raises(RuntimeError, match="invalid output tensor list"):
        dist.all_gather(heard, torch.ones(1))


def test_other_groups_are_left_alone(world: dist.ProcessGroup) -> None:
    other: Any = dist.new_group([0])
    stand_ins = StandIns()
    stand_ins.begin(world, rank=0, size=2, device=torch.device("cpu"))
    heard = [torch.zeros(1)]
    dist.all_gather(heard, torch.ones(1), group=other)
    stand_ins.end()
    assert heard[0].item() == 1
