"""What Lightning's adapter cannot keep exact is refused with its name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from understudy.errors import UsageError
from understudy.integrations.lightning import _refuse


class DDPStrategy:
    pass


class Timer:
    pass


class MyTimer(Timer):
    pass


def trainer(**more: Any) -> Any:
    usual = SimpleNamespace(
        strategy=DDPStrategy(), callbacks=[], checkpoint_callbacks=[SimpleNamespace(_train_time_interval=None)],
        ckpt_path=None, overfit_batches=0.0, reload_dataloaders_every_n_epochs=0,
        lightning_module=SimpleNamespace(automatic_optimization=True), precision_plugin=SimpleNamespace(),
        optimizers=[torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])], fit_loop=SimpleNamespace(max_batches=3),
    )  # fmt: skip
    vars(usual).update(more)
    return usual


def test_a_usual_trainer_is_not_refused() -> None:
    _refuse(trainer(), SimpleNamespace())


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"callbacks": [MyTimer()]}, "Timer"),
        ({"strategy": SimpleNamespace()}, "the strategy SimpleNamespace"),
        ({"lightning_module": SimpleNamespace(automatic_optimization=False)}, "manual optimization"),
        ({"optimizers": [torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(1))])]}, "LBFGS"),
        ({"fit_loop": SimpleNamespace(max_batches=float("inf"))}, "an iterable dataset"),
        ({"ckpt_path": "last.ckpt", "overfit_batches": 2}, "ckpt_path, overfit_batches"),
    ],
)
def test_what_is_not_exact_is_refused(more: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"of Lightning does not work with {name}$"):
        _refuse(trainer(**more), SimpleNamespace())
