"""A disk with checkpoints on it may be broken: that costs the checkpoints, and nothing else."""

from pathlib import Path

import pytest

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
