"""Optimizers inside of others are found, and one that is not protected is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from understudy.errors import UsageError
from understudy.state.protected_state import Protected
from understudy.training.audit import Unprotected, optimizers_within


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Wrapper:
    """As frameworks have it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


def test_a_wrapper_and_a_wrapper_of_a_wrapper() -> None:
    inner = sgd(nn.Linear(2, 2))
    assert optimizers_within(Wrapper(inner)) == [inner]
    assert optimizers_within(Wrapper(Wrapper(inner))) == [inner]


def test_a_container_of_several() -> None:
    one, two = sgd(nn.Linear(2, 2)), sgd(nn.Linear(2, 2))
    methods = {"step": lambda: None, "zero_grad": lambda: None}
    assert optimizers_within(SimpleNamespace(optimizers=[one, two], **methods)) == [one, two]
    assert optimizers_within(SimpleNamespace(optimizers={"a": one, "b": Wrapper(two)}, **methods)) == [one, two]


class Container(torch.optim.Optimizer):
    """A real optimizer, with the parameters of those that it calls, as torchtitan's."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = list(optimizers)
        super().__init__([part for one in optimizers for group in one.param_groups for part in group["params"]], {})


def test_a_container_that_is_an_optimizer_changes_nothing_itself() -> None:
    model = nn.Linear(2, 2)
    known = sgd(model)
    protected = Protected()
    protected.modules["model"], protected.optimizers["optimizer"] = model, known
    unprotected = Unprotected(protected)
    assert optimizers_within(Container(known)) == [known]
    unprotected.refuse(Container(known))
    with pytest.raises(UsageError, match=r"SGD.* is not protected itself"):
        unprotected.refuse(sgd(model))


def test_what_is_no_wrapper() -> None:
    optimizer = sgd(nn.Linear(2, 2))
    assert optimizers_within(optimizer) == []
    assert optimizers_within(torch.optim.lr_scheduler.StepLR(optimizer, 1)) == []
    assert optimizers_within(torch.amp.GradScaler("cpu")) == []


def test_one_that_changes_what_is_protected_must_be_protected_too() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    known, forgotten, elsewhere = sgd(model), sgd(model), sgd(other)
    protected = Protected()
    protected.modules["model"], protected.optimizers["optimizer"] = model, known
    unprotected = Unprotected(protected)
    unprotected.refuse(known)
    unprotected.refuse(elsewhere)
    with pytest.raises(UsageError, match=r"SGD.* is not protected itself: give it to job.protect"):
        unprotected.refuse(forgotten)
