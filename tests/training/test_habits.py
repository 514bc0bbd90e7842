"""Bodies that can be run on a part of a step, and bodies that cannot."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from understudy.training.habits import Habits

model = nn.Linear(2, 1)
first, second = (torch.optim.SGD(model.parameters(), lr=0.0) for _ in range(2))


def loss() -> Any:
    return model(torch.ones(1, 2)).sum()


def usual() -> None:
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    first.step()
    second.step()


def one_after_the_other() -> None:
    loss().backward()
    first.step()
    loss().backward()
    second.step()


def with_closure() -> None:
    def closure() -> float:
        value = loss()
        value.backward()
        return float(value.detach())

    first.step(closure)


def within_backward() -> None:
    weight: Any = model.weight
    handle = weight.register_post_accumulate_grad_hook(lambda _: first.step())
    loss().backward()
    handle.remove()


def by_hand() -> None:
    model.weight.grad = torch.autograd.grad(loss(), model.weight)[0]
    first.step()


@pytest.mark.parametrize(
    ("body", "fetched", "objection"),
    [
        (usual, True, None),
        (usual, False, "does not take its batch from step.batch()"),
        (one_after_the_other, True, "after an optimizer has stepped"),
        (with_closure, True, "after an optimizer has stepped"),
        (within_backward, True, "or steps one in a backward pass"),
        (by_hand, True, "calls neither"),
    ],
)
def test_what_is_seen_in_the_first_step(body: Callable[[], None], fetched: bool, objection: str | None) -> None:
    habits = Habits()
    assert "first step" in (habits.objection() or "")
    habits.watch()
    habits.watch()
    body()
    habits.finish()
    habits.learn(fetched)
    found = habits.objection()
    assert found is None if objection is None else objection in (found or "")
    one_after_the_other()  # nobody watches any more
    assert habits.objection() == found


def test_a_collective_inside_or_between_optimizers_is_late_and_one_after_them_is_not() -> None:
    def seen(*, inside: bool, between: bool) -> bool:
        habits = Habits()
        talking = torch.optim.SGD(model.parameters(), lr=0.0)
        if inside:
            talking.register_step_pre_hook(lambda *_: habits.collective())
        habits.watch()
        loss().backward()
        habits.collective()
        talking.step()
        if between:
            habits.collective()
            second.step()
        habits.collective()
        habits.finish()
        return habits.late

    assert not seen(inside=False, between=False)
    assert seen(inside=True, between=False)
    assert seen(inside=False, between=True)
