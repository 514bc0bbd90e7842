"""Megatron-core's adapter with stand-ins for its objects: what it protects and refuses. The real ones: claims."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import understudy
from understudy.errors import UsageError
from understudy.integrations.megatron import protect


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    """`join()` makes a world of one."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Scheduler:
    """Its `load_state_dict` adds, as that of `OptimizerParamScheduler` does."""

    def __init__(self) -> None:
        self.num_steps = 0

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_steps += state["num_steps"]


class Chunk(nn.Linear):
    def __init__(self, **settings: bool) -> None:
        super().__init__(2, 2)
        self.zeroed = 0
        self.ddp_config = SimpleNamespace(**{"use_megatron_fsdp": False, "overlap_param_gather": False} | settings)
        group = SimpleNamespace(grad_reduce_handle="sent", per_param_grad_ready_counts={"weight": 1})
        self.bucket_groups, self.expert_parallel_bucket_groups = [group], list[Any]()

    def zero_grad_buffer(self) -> None:
        self.zeroed += 1


def optimizer_of(chunk: Chunk, **others: Any) -> Any:
    main = [parameter.detach().clone() for parameter in chunk.parameters()]
    part = {"optimizer": torch.optim.AdamW(main), "grad_scaler": None, "shard_fp32_from_float16_groups": [main]}
    config = SimpleNamespace(optimizer_cpu_offload=False)
    return SimpleNamespace(chained_optimizers=[SimpleNamespace(**part | {"config": config} | others)])


def test_what_is_stepped_and_the_schedule_are_protected() -> None:
    job, chunk, scheduler = understudy.join(), Chunk(), Scheduler()
    optimizer = optimizer_of(chunk)
    protect(job, chunk, optimizer, scheduler)
    found = job._protected
    [inner] = [part.optimizer for part in optimizer.chained_optimizers]
    assert list(found.optimizers.values()) == [inner]
    held = {id(parameter) for module in found.modules.values() for parameter in module.parameters()}
    assert held == {id(one) for one in (*chunk.parameters(), *inner.param_groups[0]["params"])}
    scheduler.num_steps = 8
    state = found.objects["scheduler"].state_dict()
    scheduler.num_steps = 3  # of a rehearsal
    found.objects["scheduler"].load_state_dict(state)
    assert scheduler.num_steps == 8


def test_what_a_step_had_begun_to_send_is_forgotten_with_its_gradients() -> None:
    chunk = Chunk()
    optimizer = optimizer_of(chunk)
    protect(understudy.join(), chunk, optimizer)
    optimizer.chained_optimizers[0].optimizer.zero_grad()
    [group] = chunk.bucket_groups
    assert (group.grad_reduce_handle, group.per_param_grad_ready_counts, chunk.zeroed) == (None, {}, 1)


@pytest.mark.parametrize(
    ("settings", "others", "named"),
    [
        ({"use_megatron_fsdp": True}, {}, "FSDP"),
        ({"overlap_param_gather": True}, {}, "overlap_param_gather"),
        ({}, {"grad_scaler": object()}, "a scale of the loss"),
        ({}, {"config": SimpleNamespace(optimizer_cpu_offload=True)}, "optimizer_cpu_offload"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_not_be_exact_is_refused(settings: dict[str, bool], others: dict[str, Any], named: str) -> None:
    chunk = Chunk(**settings)
    with pytest.raises(UsageError, match=named):
        protect(understudy.join(), chunk, optimizer_of(chunk, **others))
