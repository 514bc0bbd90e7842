"""Batches that a step cut short has left open are ended before their group is formed again."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from understudy.groups import open_batches

CPU = torch.device("cpu")


class Group:
    """What the functions ask of a group. `batch`: what is collected, None where no batch is open."""

    def __init__(self, batch: list[str] | None, broken: bool) -> None:
        self.batch, self.broken = batch, broken
        self.sent: list[str] = []

    def _end_coalescing(self, device: torch.device) -> None:
        assert device == CPU
        if self.batch is None:
            raise RuntimeError("endCoalescing called without a matching startCoalescing")
        batch, self.batch = self.batch, None
        if self.broken:
            raise dist.DistBackendError("the communicator was aborted")
        self.sent += batch


@pytest.mark.parametrize(("batch", "broken"), [(["send", "recv"], True), ([], True), (None, True), (None, False)])
def test_no_batch_is_open_and_nothing_was_sent(batch: list[str] | None, broken: bool) -> None:
    group = Group(batch, broken)
    open_batches.close(group, CPU)  # type: ignore[arg-type]
    assert group.batch is None and group.sent == []


def test_what_torch_itself_had_collected_is_forgotten() -> None:
    """It collects collectives in Python, and refuses the next batch while some are left."""
    group = Group(None, broken=False)
    c10d._world.pg_coalesce_state[group] = ["all_reduce"]  # type: ignore[index, list-item]
    open_batches.close(group, CPU)  # type: ignore[arg-type]
    assert id(group) not in map(id, c10d._world.pg_coalesce_state)
