"""The process that hosts the store dies: training does not need it, and a later recovery finds a new one."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, Seen, processes, understudy_run, wait_until

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy_testkit.faults.assertions import Setup

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SETUP = Setup(ranks=2, steps=12)


def find(mark: str, what: str) -> Seen | None:
    return next((seen for seen in processes(mark) if what in (seen.member, *seen.command.split())), None)


def test_training_goes_on_without_the_store_and_a_later_swap_finds_the_new_one(
    tmp_path: Path, mark: str, reference: Callable[[Setup], Run]
) -> None:
    script = (str(SCRIPTS / "gated.py"), str(tmp_path), "4,8", "--mode", SETUP.mode, "--steps", str(SETUP.steps))
    with understudy_run(tmp_path, *script) as job:
        wait_until(lambda: len(list(tmp_path.glob("at-4-*"))) == SETUP.ranks, "all ranks at the first gate")
        job.wait_for_output("spares: 1 warm")
        store = find(mark, "understudy.groups.store_host")
        assert store is not None
        os.kill(store.pid, signal.SIGKILL)
        (tmp_path / "go-4").touch()
        wait_until(lambda: len(list(tmp_path.glob("at-8-*"))) == SETUP.ranks, "all ranks at the second gate")
        job.wait_for_output("the store process was ended by SIGKILL")
        rank = find(mark, "m-1")
        assert rank is not None
        os.kill(rank.pid, signal.SIGKILL)
        (tmp_path / "go-8").touch()
        assert job.wait() == 0, job.output
    run = read_run(job.run_dir)
    comparison = compare(reference(SETUP), run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [recovery.step for recovery in run.recoveries] == [8]
