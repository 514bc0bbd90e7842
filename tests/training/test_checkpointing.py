"""A disk with checkpoints on it may be broken: that costs the checkpoints, and nothing else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.state.checkpoint.save import Outcome, Saved, Skipped
from understudy.training.snapshots import checkpointing
from understudy.training.snapshots.checkpointing import Checkpointing

NOTHING: Any = SimpleNamespace()


def checkpointing_in(folder: Path | None, every: int, said: list[str] | None = None) -> Checkpointing:
    return Checkpointing(
        folder,
        every,
        "run",
        status=NOTHING,
        world=NOTHING,
        fences=NOTHING,
        protected=NOTHING,
        rank_local=NOTHING,
        ledger=NOTHING,
        note=([] if said is None else said).append,
    )


def test_a_folder_that_cannot_be_read_costs_the_checkpoints_and_not_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path) -> list[tuple[int, Path]]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpointing, "whole_checkpoints", broken)
    assert checkpointing_in(tmp_path, 10).steps() == ()


def test_without_a_folder_nothing_is_looked_for() -> None:
    assert checkpointing_in(None, 0).steps() == ()


class Saver:
    """Tells what became of saves that a test made up."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes

    def poll(self) -> Outcome | None:
        return self.outcomes.pop(0) if self.outcomes else None


def test_a_slow_disk_is_spoken_of_once_and_again_when_it_has_caught_up() -> None:
    said: list[str] = []
    slow = "the save of step 40 is still under way"
    checkpoints = checkpointing_in(Path("saved"), 10, said)
    checkpoints._saver = Saver([Skipped(50, slow), Skipped(60, slow), Skipped(70, slow), Saved(40, Path(), 1, 0.0)])  # type: ignore[assignment]
    checkpoints._tell_outcomes()
    assert said == [
        f"there is no checkpoint before step 50: {slow}",
        "2 more were not written; the one before step 40 is whole",
    ]
