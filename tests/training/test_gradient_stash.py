"""What a body does to the gradients of an early part does not last."""

from typing import Any

import torch
from torch import nn

from understudy.training.degraded.gradient_stash import GradientStash


def test_clipping_and_zeroing_in_between_do_no_harm() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    stash = GradientStash([*model.parameters(), *model.parameters()])
    for set_to_none in (True, False):
        stash.restore()
        (model(torch.ones(1, 2)) * 5).sum().backward()
        stash.stash_and_show()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        stash.drop_shown()
        optimizer.zero_grad(set_to_none=set_to_none)
    stash.restore()
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[11.0, 11.0]]


def test_several_backward_passes_in_one_part() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    stash = GradientStash([weight])
    for factor in (1, 2):
        stash.restore()
        (weight * factor).sum().backward()
        stash.stash_and_show()
        assert weight.grad is not None
        weight.grad.zero_()
    stash.drop_shown()
    taken_down = weight.grad
    stash.restore()
    assert taken_down is None and weight.grad.tolist() == [3.0, 3.0]


def test_parameters_without_a_gradient_stay_without() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    stash = GradientStash([weight])
    stash.stash_and_show()
    stash.stash()
    assert weight.grad is None
    stash.restore()
    assert weight.grad is None


def test_a_step_that_is_dropped_leaves_nothing() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    stash = GradientStash([weight])
    for put_aside in (stash.stash, stash.stash_and_show):
        weight.sum().backward()
        put_aside()
        stash.clear()
        stash.restore()
        assert weight.grad is None


def test_what_is_not_shown_is_not_copied() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    stash = GradientStash([weight])
    weight.sum().backward()
    gradient = weight.grad
    stash.stash()
    hidden = weight.grad
    stash.restore()
    assert hidden is None and weight.grad is gradient
