"""When a copy for peer memory is taken."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from understudy.state.manifest import Protected
from understudy.state.snapshots import Snapshots
from understudy.training.neighbour import Neighbour
from understudy.training.saving import Saving


class Stage:
    def __init__(self, folder: Path) -> None:
        self.model = nn.Linear(64, 64)
        self.saving = Saving(Snapshots(str(folder), 1, 0, every=1), Neighbour(str(folder), 1, 0, ""))
        ledger = SimpleNamespace(committed=lambda *_: None, saved=lambda: self.written.append(self.member.holds))
        self.written: list[int] = []
        self.member: Any = SimpleNamespace(
            protected=Protected(modules={"model": self.model}),
            holds=3,
            generation=1,
            ledger=ledger,
            lost_contact=lambda: False,
        )
        self.folder = folder

    def saved_weight(self) -> torch.Tensor:
        return Snapshots(str(self.folder), 1, 0, every=1).read(3).tensors["parameters/model/weight"]


def test_weights_that_are_swapped_in_between_steps_are_not_saved(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    trained = stage.model.weight.detach().clone()
    stage.saving.begin(stage.member, 0)
    with torch.no_grad():
        stage.model.weight.zero_()  # averaged ones, for an evaluation
        assert not list(tmp_path.iterdir()), "nothing is copied while the script's own code runs"
        stage.model.weight.copy_(trained)
    stage.saving.begin_due()
    stage.saving.finish()
    assert torch.equal(stage.saved_weight(), trained) and stage.written == [3]


def test_a_copy_that_was_not_begun_is_whole_when_it_is_asked_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.saving.begin(stage.member, 0)
    assert stage.saving.steps() == (3,)
    assert torch.equal(stage.saved_weight(), stage.model.weight) and stage.written == [3]
