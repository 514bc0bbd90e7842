"""Stages that are equal until something is trained are no twins: a replacement gets the state of its own stage."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
SCRIPT = str(SCRIPTS / "equal_stages.py")


@pytest.mark.parametrize("flags", [(), ("--skip",)], ids=["rate-0", "skipped"])
def test_a_first_step_that_changes_nothing_makes_no_twins(tmp_path: Path, flags: tuple[str, ...]) -> None:
    runs = []
    for name, more in (("whole", ()), ("killed", ("--kill",))):
        folder = tmp_path / name
        with understudy_run(folder, SCRIPT, str(folder), *flags, *more, ranks=4, spares=len(more)) as job:
            assert job.wait() == 0, job.output
        runs.append(read_run(job.run_dir))
    assert (folder / "killed").exists()
    comparison = compare(*runs)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [swap[0] for recovery in runs[1].recoveries for swap in recovery.swaps] == [1]
