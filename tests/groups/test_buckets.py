from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from understudy.errors import UnfitError, UsageError
from understudy.groups.buckets import BucketLayout, Layout, choose
from understudy.groups.engines import Engines


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield
    dist.destroy_process_group()


def engine(layers: int = 4, find_unused_parameters: bool = False) -> DistributedDataParallel:
    """Every layer has 256 elements and 16 more: the buckets can be told by their sizes."""
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(layers)])
    return DistributedDataParallel(net, bucket_cap_mb=0.001, find_unused_parameters=find_unused_parameters)


def train(ddp: DistributedDataParallel) -> None:
    ddp(torch.randn(2, 16)).sum().backward()


def sizes(ddp: DistributedDataParallel) -> list[int]:
    return [bucket.buffer().numel() for bucket in ddp.reducer._get_zeros_like_grad_buckets()]


def test_the_layout_of_one_is_adopted_by_another_that_has_never_been_used_and_by_one_that_has() -> None:
    trained = BucketLayout(engine())
    trained.settle()
    first = trained.known
    assert first.trained and not first.rebuilt
    train(trained._ddp)
    trained.settle()
    assert trained.known.rebuilt and trained.known.buckets != first.buckets
    for passes in (0, 1):
        joiner = BucketLayout(engine())
        for _ in range(passes):
            train(joiner._ddp)
            joiner.settle()
        wanted = Layout(buckets=[[0, 7], [1, 2, 3], [4, 5, 6]], rebuilt=True, trained=True)
        joiner.adopt(wanted)
        assert sizes(joiner._ddp) == [272, 288, 528]
        for _ in range(2):
            train(joiner._ddp)
            joiner.settle()
        assert sizes(joiner._ddp) == [272, 288, 528] and joiner.known == wanted, "it is not laid out again"


def test_a_rehearsal_is_forgotten_where_the_others_have_not_used_the_module_yet() -> None:
    survivor, joiner = BucketLayout(engine()), BucketLayout(engine())
    survivor.settle()
    before = sizes(survivor._ddp)
    train(joiner._ddp)
    joiner.settle()
    assert sizes(joiner._ddp) != before
    joiner.adopt(survivor.known)
    assert sizes(joiner._ddp) == before
    for each in (survivor, joiner):
        train(each._ddp)
        each.settle()
    assert joiner.known == survivor.known and joiner.known.rebuilt


def test_a_layout_that_was_not_agreed_upon_any_more_is_tentative() -> None:
    survivor = BucketLayout(engine())
    survivor.settle()
    train(survivor._ddp)
    survivor.settle_alone()
    assert survivor.known.rebuilt and survivor.known.tentative
    agreed = Layout(buckets=[[0, 1, 2, 3], [4, 5, 6, 7]], rebuilt=True, trained=True)
    assert choose([survivor.known.encode(), agreed.encode()]) == agreed
    assert choose([Layout(rebuilt=True).encode(), survivor.known.encode()]) == survivor.known


def test_a_module_with_other_parameters_is_unfit() -> None:
    survivor, joiner = BucketLayout(engine(4)), BucketLayout(engine(3))
    train(survivor._ddp)
    survivor.settle()
    with pytest.raises(UnfitError, match="it has 6 parameters instead of 8"):
        joiner.adopt(survivor.known)
    fixed, other = (BucketLayout(engine(layers, find_unused_parameters=True)) for layers in (4, 3))
    fixed.settle()
    other.settle()
    fixed.adopt(fixed.known)
    with pytest.raises(UnfitError, match="find_unused_parameters"):
        other.adopt(fixed.known)


def test_a_communication_hook_with_state_is_refused_by_name() -> None:
    plain, counting = engine(), engine()
    plain.register_comm_hook(None, default_hooks.fp16_compress_hook)
    Engines([plain])
    counting.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=10), powerSGD_hook.powerSGD_hook)
    with pytest.raises(UsageError, match=r"powerSGD_hook .*PowerSGDState"):
        Engines([counting])
