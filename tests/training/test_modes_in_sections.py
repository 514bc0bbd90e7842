"""A section that is cut short may have switched modules to evaluation, and may not run again: the world goes back."""

from types import SimpleNamespace
from typing import Any

from torch import nn

from understudy.state.protected_state import Protected
from understudy.training.body import Body


def nothing(*_: Any) -> None:
    pass


def test_modules_train_again_as_before() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model[0].eval()  # frozen by the script, for good
    stand_in: Any = SimpleNamespace(
        state_dict=dict, load_state_dict=nothing, remember=nothing, restore=nothing, put_back=nothing, groups=tuple
    )
    parts = ("small", "engines", "buffers", "inspector", "rank_local", "rank_local_buffers", "late_fence")
    body = Body(protected=Protected(modules={"model": model}), **dict.fromkeys(parts, stand_in))
    body.remember()
    model.eval()
    body.put_back()
    assert [module.training for module in model.modules()] == [True, False, True]
    body.forget()
    body.remember()
    model.eval()
    body.forget()  # the section is over: what it has switched stays
    body.put_back()
    assert not any(module.training for module in model.modules())
