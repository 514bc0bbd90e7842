"""A rank that begins with what follows a step has schedulers and learning rates as they were when it was committed."""

from typing import Any

import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.training.small_state import SmallState


class Meter:
    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> dict[str, Any]:
        return {"content": self.content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.content = state["content"]


def make(meter: Meter) -> tuple[SmallState, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    objects: Any = {"scheduler": scheduler, "meter": meter}
    return SmallState(Protected(optimizers={"optimizer": optimizer}, objects=objects)), scheduler


def test_a_taker_begins_where_the_giver_began() -> None:
    (giver, ahead), (taker, behind) = make(Meter(1)), make(Meter(7))
    giver.keep(step=5)
    ahead.step()  # what follows the step has begun there
    taker.load_state_dict(giver.state_dict())
    behind.load_state_dict(ahead.state_dict())  # the transfer of everything else
    assert taker.begin_again(5)
    behind.step()
    assert behind.state_dict() == ahead.state_dict() and taker.read() == giver.read()


def test_what_belongs_to_another_step_is_not_used() -> None:
    small, scheduler = make(Meter(1))
    assert not small.begin_again(1)
    small.keep(step=5)
    scheduler.step()
    assert not small.begin_again(6) and scheduler.get_last_lr() == [0.5]
    assert small.begin_again(5) and scheduler.get_last_lr() == [1.0]


def test_a_learning_rate_that_is_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(1.0)  # a compiled optimizer reads it from where it was
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=rate)
    small = SmallState(Protected(optimizers={"optimizer": optimizer}))
    small.keep(step=5)
    rate.fill_(0.5)
    assert small.begin_again(5)
    assert optimizer.param_groups[0]["lr"] is rate and rate == 1.0


def test_what_is_large_or_cannot_be_told_is_not_kept() -> None:
    for content in (torch.zeros(1 << 20), object()):
        small, _ = make(Meter(content))
        small.keep(step=5)
        assert not small.begin_again(5)
