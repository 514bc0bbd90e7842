"""What two runs of a loop have left is compared: no line is missed, and none of other values is taken for it."""

from pathlib import Path

import pytest
import torch

from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.loops.left import Lines, compare_lines, require_same_models


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("quiet", "hurt"):
        (tmp_path / name).mkdir()
    (tmp_path / "quiet" / "log-0.txt").write_text("0 0.5\n1 0.25 3.0\n2 0.125\n")
    return tmp_path / "quiet", tmp_path / "hurt"


def test_lines_are_counted_by_step(folders: tuple[Path, Path]) -> None:
    (folders[1] / "log-0.txt").write_text("0 0.5\n1 0.25 3.0\n1 0.25 3.0\n1 0.25 3.0\n")
    assert compare_lines(*folders, "log", 1) == Lines(expected=3, lost=1, repeated=2)


@pytest.mark.parametrize("line", ["1 0.26 3.0", "7 0.5"])
def test_a_line_of_other_values_or_of_no_step_is_refused(folders: tuple[Path, Path], line: str) -> None:
    (folders[1] / "log-0.txt").write_text(f"0 0.5\n1 0.25 3.0\n{line}\n2 0.125\n")
    with pytest.raises(NotProven, match="log of rank 0 at"):
        compare_lines(*folders, "log", 1)


def test_models_are_compared_to_the_last_bit(folders: tuple[Path, Path]) -> None:
    quiet, hurt = folders
    state = {"model": {"weight": torch.arange(4.0)}, "moments": [torch.zeros(2)], "epoch": 3}
    torch.save(state, quiet / "best.pt")
    with pytest.raises(NotProven, match=r"only one of the runs has left: best\.pt"):
        require_same_models(quiet, hurt)
    torch.save(state, hurt / "best.pt")
    assert require_same_models(quiet, hurt) == 1
    (hurt / "later.pt").touch()
    with pytest.raises(NotProven, match=r"later\.pt"):
        require_same_models(quiet, hurt)
    (hurt / "later.pt").unlink()
    state["moments"] = [torch.tensor([0.0, 1e-30])]
    torch.save(state, hurt / "best.pt")
    with pytest.raises(NotProven, match=r"best\.pt is another one"):
        require_same_models(quiet, hurt)
