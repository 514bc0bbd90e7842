"""Equal bytes mean something once they are trained."""

import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.training.learning import PATIENCE, Learning, told_apart

WEIGHT, EXPERT = "parameters/model/dense.weight", "parameters/model/expert.weight"


class Rank:
    """A dense layer, and an expert that gets tokens or not."""

    def __init__(self, rate: float = 0.1, decay: float = 0.0) -> None:
        torch.manual_seed(1)
        self.model = nn.ModuleDict({"dense": nn.Linear(2, 2, bias=False), "expert": nn.Linear(2, 2, bias=False)})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, weight_decay=decay)
        self.protected = Protected(modules={"model": self.model}, optimizers={"optimizer": self.optimizer})
        self.learning = Learning(self.protected)

    def step(self, value: float = 1.0, tokens: bool = True, skip: bool = False) -> bool:
        self.learning.watch()
        x = torch.full((1, 2), value)
        (self.model["dense"](x) + self.model["expert"](x if tokens else 0 * x)).square().sum().backward()
        if not skip:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.learning.look()

    def holdings(self, rank: int = 0) -> dict[str, int]:
        self.learning.end()
        return told_apart(self.learning.held, self.learning.trained, self.protected.replicated_units(), rank)


def test_nothing_is_learnt_at_a_rate_of_0_or_in_a_step_that_is_skipped() -> None:
    rank = Rank(rate=0.0)
    assert not rank.step()
    rank.optimizer.param_groups[0]["lr"] = 0.1
    assert not rank.step(skip=True)
    assert rank.step()
    assert rank.learning.trained == {WEIGHT, EXPERT}
    rank.learning.end()


def test_an_expert_without_tokens_is_not_trained_by_weight_decay() -> None:
    ours, theirs, twin = Rank(decay=0.1), Rank(decay=0.1), Rank(decay=0.1)
    held = []
    for number, (rank, value) in enumerate(((ours, 1.0), (theirs, 2.0), (twin, 1.0))):
        assert rank.step(value, tokens=False)
        assert rank.learning.trained == {WEIGHT}
        held.append(rank.holdings(number))
    assert ours.learning.held[EXPERT] == theirs.learning.held[EXPERT]
    assert held[0][EXPERT] != held[1][EXPERT], "equal bytes by chance"
    assert held[0] == held[2], "equal in all that is trained"


def test_what_is_never_trained_is_nobody_elses() -> None:
    one, two = Rank(rate=0.0), Rank(rate=0.0)
    for rank in (one, two):
        assert not any(rank.step(skip=True) for _ in range(PATIENCE))
    mine, theirs = one.holdings(0), two.holdings(1)
    assert mine.keys() == theirs.keys() == {WEIGHT, EXPERT}
    assert not set(mine.values()) & set(theirs.values())


def test_what_structure_proves_needs_no_training() -> None:
    held = {WEIGHT: 7, EXPERT: 8}
    assert told_apart(held, (), {WEIGHT: (0, 1)}, 0)[WEIGHT] == told_apart(held, (), {WEIGHT: (0, 1)}, 1)[WEIGHT] == 7


def test_without_an_optimizer_there_is_nothing_to_wait_for() -> None:
    learning = Learning(Protected(modules={"model": nn.Linear(2, 2)}))
    learning.watch()
    assert learning.look()
    learning.end()
    assert told_apart(learning.held, learning.trained, (), 0) == learning.held
