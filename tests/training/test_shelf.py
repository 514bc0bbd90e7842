"""What a body does to the gradients of an early part does not last."""

from typing import Any

import torch
from torch import nn

from understudy.training.shelf import Shelf


def test_clipping_and_zeroing_in_between_do_no_harm() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    shelf = Shelf([*model.parameters(), *model.parameters()])
    for set_to_none in (True, False):
        shelf.put_back()
        (model(torch.ones(1, 2)) * 5).sum().backward()
        shelf.put_aside_and_show()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        shelf.take_down()
        optimizer.zero_grad(set_to_none=set_to_none)
    shelf.put_back()
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[11.0, 11.0]]


def test_several_backward_passes_in_one_part() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    shelf = Shelf([weight])
    for factor in (1, 2):
        shelf.put_back()
        (weight * factor).sum().backward()
        shelf.put_aside_and_show()
        assert weight.grad is not None
        weight.grad.zero_()
    shelf.take_down()
    taken_down = weight.grad
    shelf.put_back()
    assert taken_down is None and weight.grad.tolist() == [3.0, 3.0]


def test_parameters_without_a_gradient_stay_without() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    shelf = Shelf([weight])
    shelf.put_aside_and_show()
    shelf.put_aside()
    assert weight.grad is None
    shelf.put_back()
    assert weight.grad is None


def test_a_step_that_is_dropped_leaves_nothing() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    shelf = Shelf([weight])
    for put_aside in (shelf.put_aside, shelf.put_aside_and_show):
        weight.sum().backward()
        put_aside()
        shelf.clear()
        shelf.put_back()
        assert weight.grad is None


def test_what_is_not_shown_is_not_copied() -> None:
    weight: Any = torch.ones(2, requires_grad=True)
    shelf = Shelf([weight])
    weight.sum().backward()
    gradient = weight.grad
    shelf.put_aside()
    hidden = weight.grad
    shelf.put_back()
    assert hidden is None and weight.grad is gradient
