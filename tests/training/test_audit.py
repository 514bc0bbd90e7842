from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from understudy.state.protected_state import Protected
from understudy.training.audit import unprotected_state


class Ema:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Awkward:
    @property
    def state_dict(self) -> Any:
        raise RuntimeError("not now")


def test_what_was_forgotten_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ema, other = Ema(), nn.Linear(2, 2)
    names = {
        "model": model,
        "inner": model[0],
        "optimizer": optimizer,
        "scheduler": scheduler,
        "ema": ema,
        "other": other,
        "Ema": Ema,
        "nn": nn,
        "loader": DataLoader([1, 2]),  # type: ignore[arg-type]
        "awkward": Awkward(),
        "number": 3,
    }
    protected = Protected(modules={"model": model}, optimizers={"optimizer": optimizer})
    assert unprotected_state(names, protected) == ["ema", "other", "scheduler"]
    protected.objects = {"scheduler": scheduler, "average": ema}
    protected.modules["other"] = other
    assert unprotected_state(names, protected) == []


def test_another_name_for_a_protected_object_is_fine() -> None:
    ema = Ema()
    assert unprotected_state({"a": ema, "b": ema}, Protected(objects={"c": ema})) == []
