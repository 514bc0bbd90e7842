"""State that was taken while others were between two steps is taken again, if the script has changed it since."""

import pytest
import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.training.recovery.borrowed import Borrowed

BY_RANK_0 = {1: [0]}


class Script:
    def __init__(self) -> None:
        self.model, self.average = nn.Linear(2, 2), nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.protected = Protected(
            modules={"model": self.model, "average": self.average},
            optimizers={"optimizer": self.optimizer},
            objects={"scheduler": self.scheduler},
        )

    def step_scheduler(self) -> None:
        self.scheduler.step()

    def average_weights(self) -> None:
        self.average.weight.data.mul_(0.5)  # by .data: no version counter tells of it


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.mark.parametrize("change", [Script.step_scheduler, Script.average_weights], ids=lambda change: change.__name__)
def test_what_the_script_changes_after_the_transfer_is_noticed(script: Script, change: object) -> None:
    borrowed = Borrowed(script.protected, rank=1)
    borrowed.transferred(BY_RANK_0, between_steps=True)
    assert not borrowed.changed
    change(script)  # type: ignore[operator]
    assert borrowed.changed and not borrowed.alone


def test_who_gave_state_or_took_it_at_a_boundary_has_nothing_to_take_again(script: Script) -> None:
    giver, taker = Borrowed(script.protected, rank=0), Borrowed(script.protected, rank=1)
    giver.transferred(BY_RANK_0, between_steps=True)
    taker.transferred(BY_RANK_0, between_steps=True)
    taker.transferred(BY_RANK_0, between_steps=False)
    script.step_scheduler()
    assert not giver.changed and not taker.changed


def test_if_the_giver_was_replaced_too_nobody_has_it_better(script: Script) -> None:
    first = Borrowed(script.protected, rank=1)
    first.transferred(BY_RANK_0, between_steps=True)
    first.transferred({0: [1]}, between_steps=True)
    script.step_scheduler()
    assert first.changed and first.alone


def test_where_what_is_small_was_known_only_averages_are_taken_again(script: Script) -> None:
    borrowed = Borrowed(script.protected, rank=1)
    borrowed.transferred(BY_RANK_0, between_steps=True, knows_small=True)
    script.step_scheduler()
    assert not borrowed.changed, "it was stepped once, as that of the others was"
    script.average_weights()
    assert borrowed.changed


def test_averages_schedulers_and_options_are_digested_apart_from_what_optimizers_step(script: Script) -> None:
    protected = script.protected
    before = (protected.digest_parameters(), protected.digest_optimizer(), protected.digest_extras())
    script.step_scheduler()
    script.average_weights()
    after = (protected.digest_parameters(), protected.digest_optimizer(), protected.digest_extras())
    assert before[:2] == after[:2] and before[2] != after[2]
    script.model.weight.data.mul_(2)
    assert protected.digest_parameters() != before[0]
