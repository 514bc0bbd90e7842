"""Whole runs of `understudy run`, with workers that speak the wire protocol and train nothing."""

import os
import signal
from pathlib import Path

import pytest
from tests.agent.launching import READY, Launched, alive, wait_until

from understudy.protocol.reasons import Code

pytestmark = pytest.mark.processes


def test_a_job_runs_to_its_clean_end(tmp_path: Path) -> None:
    with Launched(tmp_path, "--nproc-per-node 2 -- 5") as job:
        assert job.wait() == 0, job.err
        assert sorted(job.out.splitlines()) == ["rank 0 speaks", "rank 1 speaks"]
        assert job.kinds()[0] == "start" and job.kinds()[-2:] == ["finish", "stop"]
        assert job.left_behind() == {}
        assert "finished in" in job.err


def test_a_script_that_never_joins_also_runs_to_its_end(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import os; print(os.environ.get('RANK'), flush=True)")
    with Launched(tmp_path, "--nproc-per-node 2 --spares 1", script=str(script)) as job:
        assert job.wait() == 0, job.err
        lines = job.out.splitlines()
        assert "0" in lines and "1" in lines
        assert lines.count("None") <= 4, "spares that end by themselves are not refilled for ever"


def test_a_killed_rank_is_replaced_and_the_recovery_is_recorded(tmp_path: Path) -> None:
    until = tmp_path / "go"
    with Launched(tmp_path, f"--nproc-per-node 2 -- 5 --until {until}") as job:
        job.wait_until_ready()
        os.kill(job.pids()["m-1"], signal.SIGKILL)
        job.wait_for_line("recovered in")
        until.touch()
        assert job.wait() == 0, job.err
        (recovery,) = [record for record in job.decisions() if record["type"] == "recovery"]
        assert recovery["swaps"] == [[1, "m-1", "m-2"]]
        assert recovery["phases"]["regroup"] == 0.001 and recovery["phases"]["transfer"] == 0.002
        (transfer,) = recovery["transfers"]
        assert transfer == {"receiver": 1, "given": {"0": 10}, "seconds": 0.001, "checked": 2}
        assert set(recovery["phases"]) >= {"detect", "stop", "rehearse", "resume", "total"}
        assert "SIGKILL (signal 9)" in job.err and "rank 1   m-1 -> m-2" in job.err


def test_a_stopped_rank_is_found_ended_and_replaced(tmp_path: Path) -> None:
    until = tmp_path / "go"
    with Launched(tmp_path, f"--nproc-per-node 2 --unresponsive-timeout 0.6 -- 5 --until {until}") as job:
        job.wait_until_ready()
        os.kill(job.pids()["m-0"], signal.SIGSTOP)
        job.wait_for_line("recovered in")
        until.touch()
        assert job.wait() == 0, job.err
        assert "stopped (SIGSTOP) for" in job.err
        assert job.left_behind() == {}


def test_a_script_error_shows_its_traceback_first_and_ends_with_the_scripts_code(tmp_path: Path) -> None:
    with Launched(tmp_path, f"--nproc-per-node 2 -- 4 --fail-at 3 --until {tmp_path / 'never'}") as job:
        assert job.wait() == 7, job.err
        assert job.err.index("Traceback") < job.err.index("the job failed (exit code 7)")
        assert "failed twice in a row in step 3" in job.err
        assert f"understudy explain {job.run_dir}" in job.err
        assert job.left_behind() == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_processes_and_their_helpers(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with Launched(tmp_path, f"--nproc-per-node 2 -- 5 --helper --until {tmp_path / 'never'}") as job:
        job.wait_until_ready()
        wait_until(lambda: len(job.pids()) == 6, "three members and their helpers")
        job.process.send_signal(number)
        assert job.wait() == code, job.err
        wait_until(lambda: not job.left_behind(), "helpers to be gone")
        assert f"{number.name} was received" in job.err


def test_who_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    never = tmp_path / "never"
    flags = "--nproc-per-node 1 --spares 0 --shutdown-timeout 1"
    with Launched(tmp_path, f"{flags} -- 5 --ignore-sigterm --until {never}") as job:
        job.wait_for_line("ranks 1/1 up")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 143
        assert job.left_behind() == {}


def test_a_second_ctrl_c_does_not_wait_for_the_grace_period(tmp_path: Path) -> None:
    never = tmp_path / "never"
    flags = "--nproc-per-node 1 --spares 0 --shutdown-timeout 600"
    with Launched(tmp_path, f"{flags} -- 5 --ignore-sigterm --until {never}") as job:
        job.wait_for_line("ranks 1/1 up")
        job.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stop" in job.kinds(), "the first signal to be taken")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert job.left_behind() == {}


def test_a_killed_agent_leaves_no_worker_behind(tmp_path: Path) -> None:
    with Launched(tmp_path, f"--nproc-per-node 2 -- 5 --until {tmp_path / 'never'}") as job:
        job.wait_until_ready()
        members = job.pids()
        assert len(members) == 3 and all(alive(pid) for pid in members.values())
        job.process.kill()
        job.process.wait()
        wait_until(lambda: not job.left_behind(), "the kernel to end the workers")


def test_an_idle_spare_that_dies_is_refilled(tmp_path: Path) -> None:
    until = tmp_path / "go"
    with Launched(tmp_path, f"--nproc-per-node 2 -- 5 --until {until}") as job:
        job.wait_until_ready()
        os.kill(job.pids()["m-2"], signal.SIGKILL)
        wait_until(lambda: "m-3" in job.pids(), "the next spare")
        wait_until(lambda: job.err.count(READY) == 2, "the next spare to be warm")
        until.touch()
        assert job.wait() == 0
        (refill,) = [record for record in job.decisions() if record.get("kind") == "refill"]
        assert refill["member"] == "m-3" and refill["code"] == Code.SPARE_LOST and refill["fields"]["member"] == "m-2"


def test_tee_and_redirect_write_files_and_prefix_lines(tmp_path: Path) -> None:
    until, logs = tmp_path / "go", tmp_path / "logs"
    flags = f"--nproc-per-node 2 --tee 0:1 --redirects 1:1 --log-dir {logs} --rdzv-id job7 --role trainer"
    with Launched(tmp_path, f"{flags} -- 5 --until {until}") as job:
        job.wait_until_ready()
        os.kill(job.pids()["m-0"], signal.SIGKILL)
        job.wait_for_line("recovered in")
        until.touch()
        assert job.wait() == 0, job.err
        assert job.out.splitlines() == ["[trainer0]:rank 0 speaks"] * 2
        ranks = logs / "job7" / "attempt_0"
        assert (ranks / "0" / "stdout.log").read_text() == "rank 0 speaks\n" * 2, "the replacement appends"
        assert (ranks / "1" / "stdout.log").read_text() == "rank 1 speaks\n"
