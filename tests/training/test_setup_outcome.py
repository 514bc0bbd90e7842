import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.training.setup_record import difference, outcome_of


def made(width: int = 3, groups: int = 1, **further: nn.Module) -> Protected:
    model = nn.Linear(width, 2)
    options = (
        [{"params": [model.weight, model.bias]}]
        if groups == 1
        else [{"params": [each]} for each in [*model.parameters()]]
    )
    return Protected({"model": model, **further}, {"optimizer": torch.optim.SGD(options, lr=0.1)})


def test_the_same_script_is_alike_whatever_its_values_are() -> None:
    assert difference(outcome_of(made(), 10), outcome_of(made(), 10)) is None


def test_another_total_of_steps_is_named_with_what_to_do() -> None:
    text = difference(outcome_of(made(), 100), outcome_of(made(), 60))
    assert text is not None and "60" in text and "100" in text and "read the same one" in text


def test_other_shapes_names_and_parameter_groups_are_named() -> None:
    expected = outcome_of(made(), 10)
    for other, named in (
        (made(width=4), "parameters/model/weight is torch.float32 (2, 4), but torch.float32 (2, 3)"),
        (made(extra=nn.Linear(1, 1)), "extra is a module, but not there"),
        (made(groups=2), "an optimizer with 2 parameter groups, but an optimizer with 1"),
    ):
        text = difference(expected, outcome_of(other, 10))
        assert text is not None and named in text
