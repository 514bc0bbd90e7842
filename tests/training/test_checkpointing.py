"""A disk with checkpoints on it may be broken: that costs the checkpoints, and nothing else."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from understudy.state.durable import Outcome, Saved, Skipped
from understudy.training import checkpointing
from understudy.training.checkpointing import Checkpointing


def test_a_folder_that_cannot_be_read_costs_the_checkpoints_and_not_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path) -> list[tuple[int, Path]]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpointing, "whole_checkpoints", broken)
    assert Checkpointing(tmp_path, 10, "run").steps() == ()


def test_without_a_folder_nothing_is_looked_for() -> None:
    assert Checkpointing(None, 0, "run").steps() == ()


class Saver:
    """Tells what became of saves that a test made up."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes

    def poll(self) -> Outcome | None:
        return self.outcomes.pop(0) if self.outcomes else None


def test_a_slow_disk_is_spoken_of_once_and_again_when_it_has_caught_up() -> None:
    said: list[str] = []
    slow = "the save of step 40 is still under way"
    checkpoints = Checkpointing(Path("saved"), 10, "run")
    checkpoints._saver = Saver([Skipped(50, slow), Skipped(60, slow), Skipped(70, slow), Saved(40, Path(), 1, 0.0)])  # type: ignore[assignment]
    checkpoints._tell_outcomes(SimpleNamespace(note=said.append))  # type: ignore[arg-type]
    assert said == [
        f"there is no checkpoint before step 50: {slow}",
        "2 more were not written; the one before step 40 is whole",
    ]
