"""The wait for gradients, apart from computing them. A communication hook plays the slow peer."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from understudy.groups.waiting import GradientWaits

LATE = 0.1  # seconds until the slow peer's gradients come


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield
    dist.destroy_process_group()


def slow_peer(
    waits: GradientWaits,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The gradients come a moment after backward has computed all of them."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def complete() -> None:
        deadline = time.monotonic() + 5.0
        while not waits.waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(LATE)
        future.set_result(bucket.buffer())

    threading.Thread(target=complete).start()
    return future


@pytest.mark.usefixtures("alone")
def test_only_the_wait_for_others_counts_and_it_is_seen_while_it_lasts() -> None:
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    waits = GradientWaits()
    waits.watch(ddp)
    ddp.register_comm_hook(waits, slow_peer)
    for _step in range(3):
        waits.begin()
        loss = ddp(torch.ones(2, 4)).sum()
        time.sleep(0.05)  # computing, as far as we know
        began = time.monotonic()
        loss.backward()
        assert LATE <= waits.seconds <= time.monotonic() - began
        assert not waits.waiting


@pytest.mark.usefixtures("alone")
def test_microbatches_add_up_and_a_new_step_begins_at_nothing() -> None:
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    waits = GradientWaits()
    waits.watch(ddp)
    ddp.register_comm_hook(waits, slow_peer)
    waits.begin()
    for _microbatch in range(2):
        ddp(torch.ones(2, 4)).sum().backward()
    assert waits.seconds >= 2 * LATE
    waits.begin()
    assert waits.seconds == 0.0
    with ddp.no_sync():
        ddp(torch.ones(2, 4)).sum().backward()
    assert waits.seconds < LATE


@pytest.mark.usefixtures("alone")
def test_a_backward_that_was_cut_short_leaves_nothing_behind() -> None:
    model = nn.Linear(4, 4)
    ddp = DistributedDataParallel(model)
    waits = GradientWaits()
    waits.watch(ddp)

    def fail(_gradient: torch.Tensor) -> None:
        raise RuntimeError("cut short")

    handle = model.weight.register_hook(fail)  # type: ignore[no-untyped-call]
    waits.begin()
    with pytest.raises(RuntimeError, match="cut short"):
        ddp(torch.ones(2, 4)).sum().backward()
    handle.remove()
    ddp._update_process_group(ddp.process_group)  # type: ignore[no-untyped-call]
    waits.begin()
    ddp(torch.ones(2, 4)).sum().backward()
    assert not waits.waiting and 0 < waits.seconds < LATE
