"""One step as an optimizer sees it: gradients are summed, an update is queued behind them, with or without the fence
of the product in between."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from understudy.cli.examination.accelerators.verbs.groups import all_reduce
from understudy.cli.examination.accelerators.verbs.held import Held
from understudy.devices.contract import FenceEvent
from understudy.errors import StepAbandoned
from understudy.foundation.ids import Generation, StepNumber
from understudy.groups.device_fence import DeviceFence
from understudy.groups.fence import SharedFence

_SHAPES = ((256, 256), (256,), (64, 256), (64,))
_GROUP = "world"


class _Watched:
    """The device, with a note of where its host waits."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held.taken(), name)

    def record(self) -> FenceEvent:
        self._held.place = "device"
        return self._held.taken().record()


def begin_training(held: Held) -> dict[str, Any]:
    """The same parameters on every rank, and an optimizer whose first step is done."""
    made = torch.Generator().manual_seed(7)
    parameters = held.parameters = [
        torch.nn.Parameter(torch.randn(shape, generator=made).to(held.where)) for shape in _SHAPES
    ]
    held.optimizer = torch.optim.AdamW(parameters, lr=0.01, fused=True)
    _set_gradients(held, 1.0)
    held.optimizer.step()
    held.place = ""
    return digest(held)


def _set_gradients(held: Held, scale: float) -> None:
    for place, parameter in enumerate(held.parameters):
        numbers = torch.arange(parameter.numel(), dtype=torch.float32, device=held.where).reshape(parameter.shape)
        parameter.grad = ((numbers % 13) - 6 + place) * (0.01 * scale)


def step(
    held: Held, fenced: bool, generation: int, folder: str, update: bool = True, ahead: int = 0, words: int = 0
) -> dict[str, Any]:
    """Returns when the host is through. `update`: without it, only gradients are summed. `ahead`: so many sums of so
    many words are queued before, so that the host is ahead of its device. Abandoned: the fence was not passed, and
    nothing was queued behind it."""
    assert held.optimizer is not None
    held.place = "queueing"
    try:
        if ahead:
            all_reduce(held, [_GROUP], 1, words, ahead)
        _sum_gradients(held)
    except RuntimeError:
        if not held.lost_contact():
            raise
        return {"abandoned": True}
    held.place = "queued"
    if fenced and not _is_passed(held, generation, folder):
        return {"abandoned": True}
    held.place = "passed"
    if update:
        held.optimizer.step()
    return {"abandoned": False}


def _sum_gradients(held: Held) -> None:
    _set_gradients(held, held.rank + 1.0)
    for parameter in held.parameters:
        assert parameter.grad is not None
        held.backends[_GROUP].allreduce([parameter.grad]).wait()
    held.events = [held.taken().record()]


def _is_passed(held: Held, generation: int, folder: str) -> bool:
    shared = SharedFence(folder, Generation(generation), held.rank, 2)

    def lost_contact() -> bool:
        return held.lost_contact()

    class Noted:
        def meet(self, *arguments: Any) -> None:
            held.place = "fence"
            shared.meet(*arguments)

        def remove(self) -> None:
            shared.remove()

    try:
        DeviceFence(Noted(), _Watched(held)).meet(StepNumber(0), lost_contact)  # type: ignore[arg-type]
    except (StepAbandoned, RuntimeError):
        if not held.abandoned and not held.linked().broken():
            raise
        return False
    finally:
        Path(shared.path).unlink(missing_ok=True)
    return True


def place(held: Held) -> dict[str, Any]:
    """How far the host has come in its step: "queueing", "queued", waiting for its "device" or at the "fence", or
    "passed"."""
    return {"place": held.place}


def digest(held: Held, seconds: float = 30.0) -> dict[str, Any]:
    """Of parameters and optimizer, once the device has come to rest."""
    assert held.optimizer is not None
    held.taken().drain(seconds)
    whole = hashlib.sha256()
    for parameter in held.parameters:
        for tensor in (parameter.detach(), *held.optimizer.state[parameter].values()):
            whole.update(tensor.cpu().numpy().tobytes())
    return {"digest": whole.hexdigest()[:16]}
