import random

import numpy as np
import pytest
import torch

from understudy.state.digests import digest_one, digest_rng, digest_tensors, tensor_bytes


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_equal_bytes_equal_digest_and_one_other_bit_another(dtype: torch.dtype) -> None:
    tensor = (torch.arange(12) % 2).to(dtype).reshape(3, 4)
    assert digest_one(tensor) == digest_one(tensor.clone())
    other = tensor.clone()
    other.view(-1).view(torch.uint8)[-1] ^= 1
    assert digest_one(tensor) != digest_one(other)


def test_a_scalar_and_an_empty_tensor_have_digests() -> None:
    assert digest_one(torch.tensor(3.0)) == digest_one(torch.tensor([3.0]))
    assert digest_one(torch.empty(0)) == digest_one(torch.empty(0, 5, dtype=torch.bfloat16))
    assert digest_tensors([("a", torch.tensor(3.0))]) != digest_tensors([("a", torch.tensor([3.0]))])
    assert digest_tensors([("a", torch.empty(0))]) != digest_tensors([("a", torch.empty(0, 5))])


def test_negative_zero_and_nan_are_told_apart_by_their_bits() -> None:
    assert digest_one(torch.tensor(0.0)) != digest_one(torch.tensor(-0.0))
    assert digest_one(torch.tensor(float("nan"))) == digest_one(torch.tensor(float("nan")))


def test_names_types_shapes_and_order_count() -> None:
    a, b = torch.ones(4), torch.zeros(4)
    base = digest_tensors([("a", a), ("b", b)])
    assert base == digest_tensors([("a", a.clone()), ("b", b.clone())])
    for other in (
        [("b", b), ("a", a)],
        [("b", a), ("a", b)],
        [("a", a)],
        [("a", a), ("c", b)],
        [("a", a.reshape(2, 2)), ("b", b)],
        [("a", a.view(torch.int32)), ("b", b)],
    ):
        assert digest_tensors(other) != base


def test_the_layout_in_memory_does_not_count() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    assert digest_one(tensor.t().contiguous().t()) == digest_one(tensor)
    assert digest_one(torch.arange(24.0)[::2]) == digest_one(torch.arange(24.0)[::2].clone())


def test_bytes_are_not_copied() -> None:
    tensor = torch.zeros(4)
    view = tensor_bytes(tensor)
    tensor[0] = 1.0
    assert bytes(view) == bytes(tensor_bytes(torch.tensor([1.0, 0.0, 0.0, 0.0])))


def test_a_parameter_can_be_digested() -> None:
    assert digest_one(torch.nn.Parameter(torch.ones(2))) == digest_one(torch.ones(2))


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random, np.random.random])
def test_every_generator_is_part_of_the_random_digest(draw: object) -> None:
    assert callable(draw)
    before = digest_rng()
    assert digest_rng() == before
    draw()
    assert digest_rng() != before
