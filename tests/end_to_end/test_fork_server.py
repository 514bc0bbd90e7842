"""A spare that was forked from the fork server is like a worker that was started; and the fork server may die."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.running import SCRIPTS, Running, processes, understudy_run, wait_until

from understudy.foundation.parenthood import children_of
from understudy.ledger.comparing import ComparisonVerdict, compare
from understudy.ledger.reading import Run, read_run
from understudy_testkit.faults.assertions import Setup

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SETUP = Setup(ranks=2, steps=12)
FACTS = str(SCRIPTS / "plain_facts.py")


def facts(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("m-*.json")}


def fork_server_of(mark: str) -> int | None:
    return next((seen.pid for seen in processes(mark) if seen.command.startswith("understudy fork-server")), None)


def test_a_script_cannot_tell_a_fork_from_a_start(tmp_path: Path) -> None:
    with understudy_run(tmp_path, FACTS, str(tmp_path)) as job:
        assert job.wait() == 0, job.output
    seen = facts(tmp_path)
    assert sorted(seen) == ["m-0", "m-1", "m-2"]
    assert seen["m-2"] == seen["m-0"]
    assert seen["m-2"]["session"]
    assert len({path.read_text() for path in tmp_path.glob("m-*.seed")}) == 3  # nobody has another's random numbers


def test_so_does_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPTS), inherited] if inherited else [str(SCRIPTS)]))
    with understudy_run(tmp_path, "-m", "plain_facts", str(tmp_path)) as job:
        assert job.wait() == 0, job.output
    seen = facts(tmp_path)
    assert seen["m-2"] == seen["m-0"]


@pytest.mark.parametrize("flags", [(), ("--no-fork-server",)])
def test_a_traceback_begins_in_the_script(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The error is raised between two steps, and a swap heals it: the next member never comes to that place."""
    with understudy_run(tmp_path, FACTS, str(tmp_path), "fails", flags=flags) as job:
        assert job.wait() == 0, job.output
    _, _, trace = job.output.partition("Traceback (most recent call last):\n")
    assert trace.removeprefix("[rank1]:").lstrip().startswith(f'File "{FACTS}"'), job.output
    assert "RuntimeError: after the swap" in trace
    assert sorted(facts(tmp_path)) == ["m-0", "m-1", "m-2"]


def test_a_script_that_sets_the_engines_variables_gets_what_it_asked_for(tmp_path: Path) -> None:
    with understudy_run(tmp_path, FACTS, str(tmp_path), "sets-threads") as job:
        assert job.wait() == 0, job.output
    seen = facts(tmp_path)
    assert seen["m-2"] == seen["m-0"]
    assert seen["m-0"]["threads"] == 2
    assert "sets OMP_NUM_THREADS before it imports torch" in job.output


def gated(tmp_path: Path, *gates: int) -> Running:
    at = ",".join(map(str, gates))
    script = (str(SCRIPTS / "gated.py"), str(tmp_path), at, "--mode", SETUP.mode, "--steps", str(SETUP.steps))
    return understudy_run(tmp_path, *script)


def wait_at(tmp_path: Path, gate: int) -> None:
    wait_until(lambda: len(list(tmp_path.glob(f"at-{gate}-*"))) >= SETUP.ranks, f"all ranks at gate {gate}")


def kill_member(mark: str, member: str) -> None:
    (pid,) = [seen.pid for seen in processes(mark) if seen.member == member]
    os.kill(pid, signal.SIGKILL)


def test_workers_outlive_their_fork_server_and_a_new_one_serves(
    tmp_path: Path, mark: str, reference: Callable[[Setup], Run]
) -> None:
    with gated(tmp_path, 3, 6, 9) as job:
        wait_at(tmp_path, 3)
        job.wait_for_output("spares: 1 warm")
        kill_member(mark, "m-1")
        (tmp_path / "go-3").touch()
        wait_at(tmp_path, 6)
        job.wait_for_output("spares: 1 warm", times=2)
        fork_server = fork_server_of(mark)
        assert fork_server is not None and fork_server in children_of(job.process.pid)
        os.kill(fork_server, signal.SIGKILL)
        job.wait_for_output("the fork server was ended by SIGKILL (signal 9); a new one is started")
        kill_member(mark, "m-0")
        (tmp_path / "go-6").touch()
        wait_at(tmp_path, 9)
        job.wait_for_output("spares: 1 warm", times=3)
        kill_member(mark, "m-2")
        (tmp_path / "go-9").touch()
        assert job.wait() == 0, job.output
    run = read_run(job.run_dir)
    comparison = compare(reference(SETUP), run)
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
    assert [recovery.step for recovery in run.recoveries] == [3, 6, 9]


def test_a_run_without_a_fork_server(tmp_path: Path, mark: str, reference: Callable[[Setup], Run]) -> None:
    script = (str(SCRIPTS / "gated.py"), str(tmp_path), "4", "--mode", SETUP.mode, "--steps", str(SETUP.steps))
    with understudy_run(tmp_path, *script, flags=("--no-fork-server",)) as job:
        wait_at(tmp_path, 4)
        job.wait_for_output("spares: 1 warm")
        assert fork_server_of(mark) is None
        kill_member(mark, "m-1")
        (tmp_path / "go-4").touch()
        assert job.wait() == 0, job.output
    comparison = compare(reference(SETUP), read_run(job.run_dir))
    assert comparison.verdict is ComparisonVerdict.IDENTICAL, comparison.sentence()
