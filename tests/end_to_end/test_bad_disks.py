"""Training does not need its disk: full, read-only, blocked or gone, the job ends well and as it would have."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.disks import remount, small_disk
from tests.end_to_end.running import SCRIPTS, Running, processes, understudy_run, wait_until

from understudy.ledger.reading import read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SCRIPT = str(SCRIPTS / "small_steps.py")
STEPS, MIDDLE = 300, 150


def final(job: Running) -> str:
    """The digest of the parameters with which it ended."""
    (found,) = re.findall(r"^final (\w+)$", job.output, re.MULTILINE)
    return str(found)


def verify(one: Path, two: Path) -> tuple[int, str]:
    command = (sys.executable, "-m", "understudy", "verify", str(one), str(two))
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return ended.returncode, ended.stdout + ended.stderr


def checkpoints(folder: Path) -> tuple[str, ...]:
    return ("--checkpoint-dir", str(folder / "saved"), "--checkpoint-every", str(MIDDLE))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Running:
    """The same training on a good disk, with checkpoints in the middle and at the end."""
    folder = tmp_path_factory.mktemp("reference")
    with understudy_run(folder, SCRIPT, str(STEPS), spares=0, flags=checkpoints(folder)) as job:
        assert job.wait() == 0, job.output
    return job


def test_a_full_disk_under_the_run_folder(tmp_path: Path, reference: Running) -> None:
    with (
        small_disk(tmp_path / "job"),
        Running(
            tmp_path / "output",
            *(
                "-m",
                "understudy",
                "run",
                "--no-progress",
                "--run-dir",
                str(tmp_path / "job" / "run"),
                "--nproc-per-node",
                "2",
            ),
            *("--spares", "0", "--ledger-digest-every", "1", SCRIPT, str(STEPS)),
        ) as job,
    ):
        assert job.wait() == 0, job.output
        assert final(job) == final(reference)
        assert job.output.count("cannot be written: No space left on device. Training goes on") == 1
        assert "not everything could be written to" in job.output
        code, told = verify(reference.run_dir, tmp_path / "job" / "run")
        assert code == 3, told
        assert "identical in all that both have; the ledger of B is incomplete" in told
        run = read_run(tmp_path / "job" / "run")
        assert run.lacks_steps and 50 < run.step_count < STEPS


def test_a_read_only_ledger_that_becomes_writable_and_a_log_that_blocks_for_ever(
    tmp_path: Path, reference: Running
) -> None:
    log = tmp_path / "logs" / "run" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)  # nobody reads it: to open it blocks
    flags = ("--redirects", "1", "--log-dir", str(tmp_path / "logs"))
    gate = tmp_path / "gate"
    with small_disk(tmp_path / "run" / "ledger", "2m") as ledger:
        remount(ledger, "ro")
        script = (
            SCRIPT,
            str(STEPS),
            "--wait-at",
            str(MIDDLE),
            str(gate),
            "--say",
            "2000",
        )  # far more than a pipe holds
        with understudy_run(tmp_path, *script, spares=0, flags=flags) as job:
            wait_until(lambda: gate.with_suffix(".0").exists() and gate.with_suffix(".1").exists(), "both ranks")
            job.wait_for_output("cannot be written: Read-only file system. Training goes on")
            remount(ledger, "rw")
            job.wait_for_output(f"{ledger} can be written again; nothing is missing")
            gate.touch()
            assert job.wait() == 0, job.output
            assert job.output.count("Read-only file system") == 1
            assert f"not everything could be written to {log}" in job.output
        code, told = verify(reference.run_dir, tmp_path / "run")
        assert code == 0, told
    assert (log.parent.parent / "1" / "stdout.log").stat().st_size == STEPS * 2001, "the other rank's log is whole"


def test_a_run_folder_that_is_removed_and_a_rank_that_is_killed_after_that(
    tmp_path: Path, mark: str, reference: Running
) -> None:
    gate = tmp_path / "gate"
    script = (SCRIPT, str(STEPS), "--wait-at", str(MIDDLE), str(gate))
    with understudy_run(tmp_path, *script, spares=1) as job:
        job.wait_for_output("ranks 2/2 up, spares: 1 warm")
        wait_until(lambda: gate.with_suffix(".0").exists() and gate.with_suffix(".1").exists(), "both ranks")
        wait_until(lambda: read_run(job.run_dir).step_count == MIDDLE + 1, "their records on the disk")
        shutil.rmtree(job.run_dir)
        (victim,) = [seen for seen in processes(mark) if seen.member == "m-1"]
        os.kill(victim.pid, signal.SIGKILL)
        gate.touch()
        assert job.wait() == 0, job.output
        assert "recovered in" in job.output and final(job) == final(reference)
        assert job.output.count("it was removed while it was written. Training goes on") == 1
    run = read_run(job.run_dir)
    assert run.recoveries and run.lacks_steps and run.lacks_decisions and run.step_count == STEPS
    code, told = verify(reference.run_dir, job.run_dir)
    assert code == 3 and "steps 0 to " in told, told


def test_shared_memory_that_is_full_and_a_rank_that_is_killed_after_that(tmp_path: Path, reference: Running) -> None:
    """In a mount namespace of its own, where /dev/shm is small."""
    if os.geteuid() != 0 or subprocess.run(("unshare", "-m", "true"), check=False).returncode != 0:
        pytest.skip("mount namespaces are not permitted here")
    proof = tmp_path / "killed"
    script = f"{SCRIPT} {STEPS} --fill-at {MIDDLE - 50} /dev/shm/full --kill-at {MIDDLE} {proof}"
    flags = f"--no-progress --run-dir {tmp_path / 'run'} --nproc-per-node 2 --spares 1 --ledger-digest-every 1"
    inside = f"mount -t tmpfs -o size=400k none /dev/shm && exec {sys.executable} -m understudy run {flags} {script}"
    become = "import os, sys; os.execvp('unshare', ['unshare', '-m', 'sh', '-c', sys.argv[1]])"
    with Running(tmp_path, "-c", become, inside) as job:
        assert job.wait() == 0, job.output
        assert proof.exists() and "recovered in" in job.output and final(job) == final(reference)
        assert job.output.count("steps of m-0 are missing from the ledger from now on") == 1
    code, told = verify(reference.run_dir, job.run_dir)
    assert code == 3 and "identical in all that both have" in told, told


def test_a_run_that_goes_on_from_a_checkpoint_is_held_against_the_whole_one(tmp_path: Path, reference: Running) -> None:
    shutil.copytree(reference.run_dir.parent / "saved", tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved" / f"step-{STEPS:08}")
    with understudy_run(tmp_path, SCRIPT, str(STEPS), spares=0, flags=checkpoints(tmp_path)) as job:
        assert job.wait() == 0, job.output
        assert final(job) == final(reference)
    code, told = verify(reference.run_dir, job.run_dir)
    assert code == 0, told
    assert f"identical from step {MIDDLE} on (B began there, from a checkpoint): {MIDDLE} steps on 2 ranks" in told
