"""A section that is called behind a step which comes again does nothing: the other ranks are not there."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
SCRIPT = str(SCRIPTS / "unguarded_section.py")


def test_a_section_behind_a_step_that_comes_again_does_nothing(tmp_path: Path) -> None:
    runs = []
    for name, more in (("whole", ()), ("killed", ("--kill",))):
        folder = tmp_path / name
        with understudy_run(folder, SCRIPT, str(folder), *more, ranks=2, spares=len(more)) as job:
            assert job.wait() == 0, job.output
        runs.append(read_run(job.run_dir))
    assert (folder / "killed").exists()
    comparison = compare(*runs)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert len(runs[1].recoveries) == 1
