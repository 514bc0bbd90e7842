"""Which parameters count as finite."""

import torch
from torch import nn

from understudy.state.manifest import Protected
from understudy.training.probation import is_finite


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
