"""Digests tell batches apart, and copies share nothing, whatever batches are made of."""

import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from understudy.training.data.batch_content import copy_batch, digest_batch


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: Any
    name: str = "one"


WRAPPINGS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda x: x,
    "tuple": lambda x: (x, 1),
    "list of dictionaries": lambda x: [{"a": 1}, {"x": x, "caption": "one"}],
    "named tuple": lambda x: Pair(1, x),
    "ordered": lambda x: OrderedDict(y=None, x=x),
    "mapping of its own kind": lambda x: UserDict({"x": x}),
    "dataclass": Record,
}


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("content", [torch.arange(6.0), np.arange(6.0)], ids=["tensor", "array"])
def test_a_copy_is_equal_and_shares_nothing(name: str, content: Any) -> None:
    batch = WRAPPINGS[name](content.reshape(2, 3))
    digest, copied = digest_batch(batch), copy_batch(batch)
    assert digest is not None and digest_batch(copied) == digest and type(copied) is type(batch)
    content += 1
    assert digest_batch(batch) != digest == digest_batch(copied)
    content -= 1
    assert digest_batch(batch) == digest


def test_shapes_types_and_places_count() -> None:
    zeros = torch.zeros(2, 3)
    batches = [zeros, zeros.reshape(3, 2), zeros.int(), [zeros], {"x": zeros}, {"y": zeros}, [zeros, 1], [zeros, True]]
    assert len({digest_batch(batch) for batch in batches}) == len(batches)


def test_a_copy_of_a_view_has_the_size_of_the_view() -> None:
    everything = torch.zeros(1000, 10)
    copied = copy_batch(everything[5:7])
    assert copied.untyped_storage().nbytes() == 2 * 10 * 4


def test_what_is_not_known_has_no_digest_and_no_copy() -> None:
    assert digest_batch([torch.zeros(1), object()]) is None
    assert digest_batch(np.array([object()])) is None
    with pytest.raises(TypeError, match="object cannot be copied"):
        copy_batch({"x": object()})


def test_of_a_dtensor_counts_what_this_rank_holds() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        whole = torch.arange(6.0)
        sharded = distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)])
        assert digest_batch([sharded]) == digest_batch([whole]) != digest_batch([sharded + 1])
    finally:
        dist.destroy_process_group()
