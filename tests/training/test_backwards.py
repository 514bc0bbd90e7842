"""The weight goes in at the loss, once."""

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from understudy.training.backwards import Backwards


@pytest.fixture
def leaf() -> Any:
    return torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)


def gradient(leaf: Any) -> list[float]:
    assert leaf.grad is not None
    found: list[float] = leaf.grad.tolist()
    leaf.grad = None
    return found


def test_every_way_to_begin_a_backward_pass(leaf: Any) -> None:
    backwards = Backwards(0.25)
    backwards.begin()
    try:
        (leaf * 2).sum().backward()
        assert gradient(leaf) == [0.5, 0.5]
        (leaf * 2).backward(torch.tensor([1.0, 2.0], dtype=torch.float64))
        assert gradient(leaf) == [0.5, 1.0]
        torch.autograd.backward([leaf.sum(), (leaf * 2).sum()])
        assert gradient(leaf) == [0.75, 0.75]
        torch.autograd.backward([leaf.sum(), leaf * 2], [None, torch.ones(2, dtype=torch.float64)])
        assert gradient(leaf) == [0.75, 0.75]
        leaf.sum().backward(inputs=[leaf], retain_graph=True)
        assert gradient(leaf) == [0.25, 0.25]
        with pytest.raises(RuntimeError, match="scalar"):
            (leaf * 2).backward()
    finally:
        backwards.end()
    assert backwards.count == 5
    leaf.sum().backward()
    assert gradient(leaf) == [1.0, 1.0]
    backwards.end()


def test_a_pass_within_a_pass_is_not_weighted_again(leaf: Any) -> None:
    calls: list[str] = []
    backwards = Backwards(0.5, before=lambda: calls.append("before"), after=lambda: calls.append("after"))
    backwards.begin()
    try:
        checkpoint(lambda x: x * 3, leaf, use_reentrant=True).sum().backward()
    finally:
        backwards.end()
    assert gradient(leaf) == [1.5, 1.5]
    assert (calls, backwards.count) == (["before", "after"], 1)


def test_a_scaler(leaf: Any) -> None:
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=8.0)
    backwards = Backwards(0.5)
    backwards.begin()
    try:
        scaler.scale(leaf.sum()).backward()
    finally:
        backwards.end()
    assert gradient(leaf) == [4.0, 4.0]


def test_a_pass_that_comes_too_late_is_refused(leaf: Any) -> None:
    backwards = Backwards()
    backwards.begin()
    try:
        backwards.refuse(ValueError("too late"))
        with pytest.raises(ValueError, match="too late"):
            leaf.sum().backward()
    finally:
        backwards.end()
    assert leaf.grad is None
