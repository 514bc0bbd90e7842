"""A body may talk in the group in which DDP adds up gradients; a joiner rehearses it without peers."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def run(folder: Path, *flags: str) -> Run:
    script = (str(SCRIPTS / "talking_body.py"), str(folder), *flags)
    with understudy_run(folder, *script, ranks=2, spares=int(bool(flags))) as job:
        assert job.wait(200) == 0, job.output
    assert (folder / "killed").exists() == bool(flags)
    return read_run(job.run_dir)


def test_a_replacement_rehearses_a_body_that_talks(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path / "quiet"), run(tmp_path / "hurt", "--kill-at", "4"))
    assert comparison.verdict in (ComparisonVerdict.IDENTICAL, ComparisonVerdict.WEAK), comparison.sentence()
