"""Bodies that can be run on a part of a step, and bodies that cannot."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from understudy.training.step_inspector import StepInspector

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
    inspector = StepInspector()
    assert "first step" in (inspector.objection() or "")
    inspector.watch()
    inspector.watch()
    body()
    inspector.finish()
    inspector.learn(fetched)
    found = inspector.objection()
    assert found is None if objection is None else objection in (found or "")
    one_after_the_other()  # nobody watches any more
    assert inspector.objection() == found


def test_a_collective_inside_or_between_optimizers_is_late_and_one_after_them_is_not() -> None:
    def seen(*, inside: bool, between: bool) -> bool:
        inspector = StepInspector()
        talking = torch.optim.SGD(model.parameters(), lr=0.0)
        if inside:
            talking.register_step_pre_hook(lambda *_: inspector.collective())
        inspector.watch()
        loss().backward()
        inspector.collective()
        talking.step()
        if between:
            inspector.collective()
            second.step()
        inspector.collective()
        inspector.finish()
        return inspector.late

    assert not seen(inside=False, between=False)
    assert seen(inside=True, between=False)
    assert seen(inside=False, between=True)
