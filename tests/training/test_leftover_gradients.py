"""Gradients that a body leaves behind without an optimizer step."""

import pytest
import torch
from torch import nn

from understudy.errors import UsageError
from understudy.state.protected_state import Protected
from understudy.training.step_inspector import refuse_leftover_gradients


def left_over(scale: float) -> Protected:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.ones(1, 2)).sum() * scale).backward()
    return Protected(modules={"model": model}, optimizers={"optimizer": optimizer})


def test_gradients_that_the_next_step_would_add_to_are_refused() -> None:
    with pytest.raises(UsageError, match=r"(?s)step 3 .*with step:.*optimizer.step"):
        refuse_leftover_gradients(left_over(1.0), 3)


@pytest.mark.parametrize("scale", [0.0, float("inf")])  # zeroed; found by a scaler, which skipped its optimizer
def test_others_are_not(scale: float) -> None:
    refuse_leftover_gradients(left_over(scale), 3)


def test_none_are_fine() -> None:
    protected = left_over(1.0)
    protected.forget_gradients()
    refuse_leftover_gradients(protected, 3)
