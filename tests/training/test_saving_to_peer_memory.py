"""When a copy for peer memory is taken."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from understudy.state.peer_memory.snapshots import Snapshots
from understudy.state.protected_state import Protected
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.snapshots.peer_replication import PeerReplication


class Stage:
    def __init__(self, folder: Path) -> None:
        self.model = nn.Linear(64, 64)
        self.folder, self.written = folder, list[int]()
        status: Any = SimpleNamespace(holds=3, generation=1)
        ledger: Any = SimpleNamespace(committed=lambda *_: None, saved=lambda: self.written.append(status.holds))
        contact: Any = SimpleNamespace(lost=lambda: False)
        nothing: Any = SimpleNamespace()
        self.peer_memory = PeerMemory(
            Snapshots(str(folder), 1, 0, every=1),
            PeerReplication(str(folder), 1, 0, ""),
            status=status,
            world=nothing,
            contact=contact,
            protected=Protected(modules={"model": self.model}),
            rank_local=nothing,
            ledger=ledger,
            note=self.fail,
        )

    def fail(self, text: str) -> None:
        raise AssertionError(text)

    def saved_weight(self) -> torch.Tensor:
        return Snapshots(str(self.folder), 1, 0, every=1).read(3).tensors["parameters/model/weight"]


def test_weights_that_are_swapped_in_between_steps_are_not_saved(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    trained = stage.model.weight.detach().clone()
    stage.peer_memory.begin(0)
    with torch.no_grad():
        stage.model.weight.zero_()  # averaged ones, for an evaluation
        assert not list(tmp_path.iterdir()), "nothing is copied while the script's own code runs"
        stage.model.weight.copy_(trained)
    stage.peer_memory.begin_due()
    stage.peer_memory.finish()
    assert torch.equal(stage.saved_weight(), trained) and stage.written == [3]


def test_a_copy_that_was_not_begun_is_whole_when_it_is_asked_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.peer_memory.begin(0)
    assert stage.peer_memory.steps() == (3,)
    assert torch.equal(stage.saved_weight(), stage.model.weight) and stage.written == [3]
