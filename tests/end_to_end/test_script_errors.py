"""An error of the script itself: healed when it was an accident, reported when it comes again."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run

from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy_testkit.faults.assertions import Setup, perform, prove_identical
from understudy_testkit.faults.catalogue import Fault, FaultPoint, Kind, save_schedule
from understudy_testkit.faults.injector import fired

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SETUP = Setup(ranks=2, steps=12)
SUMMARY = "understudy: --- the job failed (exit code 1)"


def test_an_error_that_happens_once_is_healed_by_a_swap(tmp_path: Path, reference: Callable[[Setup], Run]) -> None:
    fault = Fault(name="once", kind=Kind.ERROR, rank=1, place=FaultPoint.FORWARD, step=5)
    outcome = prove_identical(tmp_path, SETUP, reference(SETUP), [fault], timeout=240.0)
    assert "InjectedError: injected by once" in outcome.output
    assert [swap[0] for recovery in outcome.run.recoveries for swap in recovery.swaps] == [1]


def test_an_error_that_comes_again_stops_the_job_and_burns_one_spare(tmp_path: Path) -> None:
    fault = Fault(name="always", kind=Kind.ERROR, rank=1, place=FaultPoint.FORWARD, step=5, times=5)
    outcome = perform(tmp_path, SETUP, [fault], timeout=240.0)
    assert outcome.exit_code == 1, outcome.output
    assert [proof["fault"] for proof in outcome.proofs] == ["always", "always"]
    assert "twice in a row in step 5" in outcome.output
    traceback = outcome.output.index("InjectedError: injected by always")
    assert traceback < outcome.output.index(SUMMARY)
    assert len([swap for recovery in outcome.run.recoveries for swap in recovery.swaps]) == 1


def test_an_error_before_the_first_step_stops_the_job(tmp_path: Path) -> None:
    script = (str(SCRIPTS / "own_functions.py"), str(tmp_path / "result"), "--fail-at-setup")
    with understudy_run(tmp_path, *script) as job:
        assert job.wait() == 1
        assert "LookupError: the data set is not there" in job.output
        assert "Traceback" in job.output
        assert job.output.index("LookupError") < job.output.index(SUMMARY)
    assert not (tmp_path / "result").exists()


def test_a_body_that_swallows_exceptions_cannot_commit_what_it_should_not(
    tmp_path: Path, reference: Callable[[Setup], Run]
) -> None:
    """The survivor is blocked in its backward; it swallows the failure and goes on to the optimizer."""
    fault = Fault(name="kill", kind=Kind.KILL, rank=1, place=FaultPoint.COLLECTIVE, step=5)
    save_schedule(tmp_path / "faults.json", [fault])
    script_args = ("--mode", SETUP.mode, "--steps", str(SETUP.steps), "--faults", str(tmp_path / "faults.json"))
    script = (str(SCRIPTS / "swallowing.py"), *script_args, "--proofs", str(tmp_path / "proofs"))
    with understudy_run(tmp_path, *script) as job:
        assert job.wait() == 0, job.output
        assert "swallowed" in job.output
        comparison = compare(reference(SETUP), read_run(job.run_dir))
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert len(fired(tmp_path / "proofs")) == 1


def test_a_rank_that_leaves_the_loop_alone_is_replaced(tmp_path: Path) -> None:
    script = (str(SCRIPTS / "plain_facts.py"), str(tmp_path), "leaves")
    with understudy_run(tmp_path, *script, flags=("--step-timeout-min", "3")) as job:
        assert job.wait() == 0, job.output
        assert "rank 1 left its loop over job.steps() before the last step" in job.output
    assert [swap for recovery in read_run(job.run_dir).recoveries for swap in recovery.swaps] == [
        (1, "m-1", "m-2"),
        (1, "m-2", "m-3"),
    ]


def test_all_ranks_may_leave_the_loop_early(tmp_path: Path) -> None:
    with understudy_run(tmp_path, str(SCRIPTS / "plain_facts.py"), str(tmp_path), "stops-early") as job:
        assert job.wait() == 0, job.output
    run = read_run(job.run_dir)
    assert len(run.recoveries) == 1
