"""A rank is lost while others communicate between two steps, where the script has changed its learning rate as well.

One row of `claims/ordinary-life`; the claim has more."""

from pathlib import Path

import pytest

from understudy_testkit.faults.ordinary.days import table
from understudy_testkit.faults.ordinary.playing import References, play

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def test_what_the_script_changes_between_steps_is_changed_once_in_a_replacement(tmp_path: Path) -> None:
    wanted = "a scheduler stepped between steps, rank 1 killed there, evaluation"
    (row,) = [row for row in table() if row.name == wanted]
    assert "identical, ranks [1] replaced" in play(tmp_path / "row", row, References(tmp_path / "references"))
