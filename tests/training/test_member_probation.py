"""Which parameters and which losses count as finite."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.training.recovery.probation import Losses, is_finite


def protected(model: nn.Module) -> Protected:
    found = Protected()
    found.modules["model"] = model
    return found


def test_one_value_is_enough() -> None:
    model = nn.Linear(3, 2)
    assert is_finite(protected(model))
    for bad in ("nan", "inf", "-inf"):
        with torch.no_grad():
            model.weight[1, 2] = float(bad)
        assert not is_finite(protected(model))


def test_large_numbers_masks_and_empty_tensors_are_fine() -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(3e38)  # its square is not finite
    model.register_buffer("mask", torch.full((2, 2), float("-inf")))
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    model.register_parameter("short", nn.Parameter(torch.full((2,), 6e4, dtype=torch.float16)))
    assert is_finite(protected(model))


def test_nothing_to_look_at() -> None:
    assert is_finite(protected(nn.Identity()))


def trouble(body: Callable[[Any], object], stepped: bool = True) -> str | None:
    losses, leaf = Losses(), torch.ones(2, requires_grad=True)
    losses.begin()
    try:
        body(leaf)
    finally:
        losses.end()
    return losses.trouble(stepped)


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_one_loss_of_several_is_enough(bad: str) -> None:
    def body(leaf: Any) -> None:
        leaf.sum().backward()
        (leaf.sum() + float(bad)).backward()

    assert trouble(body) == f"its loss is not finite ({bad})"


def test_losses_that_are_fine() -> None:
    assert trouble(lambda leaf: leaf.sum().backward()) is None
    assert trouble(torch.sum) is None


def test_what_is_no_loss_is_not_looked_at() -> None:
    """A stage of a pipeline begins with activations, and what flows into them."""
    assert trouble(lambda leaf: (leaf + float("inf")).backward(torch.ones(2))) is None


def test_a_scaler_that_looks_for_its_scale_skips_the_step_and_is_left_alone() -> None:
    too_large: Callable[[Any], object] = lambda leaf: (leaf.sum() * 1e30 * 1e30).backward()  # noqa: E731
    assert trouble(too_large, stepped=False) is None
    assert trouble(too_large, stepped=True) is not None
    assert trouble(lambda leaf: (leaf.sum() * float("nan")).backward(), stepped=False) is not None
