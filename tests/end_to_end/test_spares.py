"""A spare costs nothing while it waits, and is replaced when it dies."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, processes, understudy_run, wait_until

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy_testkit.faults.assertions import Setup

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SETUP = Setup(ranks=2, steps=12)
WARM = "ranks 2/2 up, spares: 1 warm"


def test_an_idle_spare_uses_no_cpu_and_is_replaced_when_it_dies(
    tmp_path: Path, mark: str, reference: Callable[[Setup], Run]
) -> None:
    script = (str(SCRIPTS / "gated.py"), str(tmp_path), "5", "--mode", SETUP.mode, "--steps", str(SETUP.steps))
    with understudy_run(tmp_path, *script) as job:
        job.wait_for_output(WARM)
        wait_until(lambda: len(list(tmp_path.glob("at-5-*"))) == SETUP.ranks, "all ranks at the gate")
        (spare,) = [seen for seen in processes(mark) if seen.member == "m-2"]
        before = spare.cpu_ticks()
        time.sleep(2.0)
        assert spare.cpu_ticks() - before <= 1
        os.kill(spare.pid, signal.SIGKILL)
        job.wait_for_output(WARM, times=2)
        (tmp_path / "go-5").touch()
        assert job.wait() == 0, job.output
    run = read_run(job.run_dir)
    comparison = compare(reference(SETUP), run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert not run.recoveries
