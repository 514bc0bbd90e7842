"""Communication between steps is told of once, with the line of the script."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from understudy.training import collectives_between
from understudy.training.collectives_between import tell_of_collectives_between_steps


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A world of one, in which nothing that is wrapped stays so."""
    for name in collectives_between._METHODS:
        monkeypatch.setattr(dist.ProcessGroup, name, getattr(dist.ProcessGroup, name))
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_first_one_is_told_of_with_its_line_and_no_other() -> None:
    said: list[str] = []
    between = False
    tell_of_collectives_between_steps(lambda: between, said.append)
    one = torch.ones(1)
    dist.all_reduce(one)
    assert not said, "in a step"
    between = True
    dist.all_reduce(one)
    dist.barrier()
    assert len(said) == 1
    assert "communicates between steps (allreduce, called from test_collectives_between.py:" in said[0]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "communicate",
    [
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.all_gather([x.clone()], x),
        lambda x: dist.all_gather_into_tensor(x.clone(), x),
        lambda x: dist.reduce(x, 0),
        lambda _: dist.barrier(),
        lambda _: dist.all_gather_object([None], "x"),  # type: ignore[misc]
    ],
)
def test_every_kind_is_seen(communicate: Callable[[Any], Any]) -> None:
    said: list[str] = []
    tell_of_collectives_between_steps(lambda: True, said.append)
    communicate(torch.ones(1))
    assert len(said) == 1 and "called from test_collectives_between.py:" in said[0]
