"""One script under python, torchrun and understudy."""

from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, Running, understudy_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SCRIPT = str(SCRIPTS / "own_functions.py")


def ended_well(job: Running, result: Path) -> str:
    with job:
        assert job.wait() == 0, job.output
    return result.read_text()


def test_plain_python(tmp_path: Path) -> None:
    result = tmp_path / "result"
    assert ended_well(Running(tmp_path, SCRIPT, str(result)), result).startswith("9 ")


def test_a_swap_with_the_scripts_own_functions_ends_as_torchrun_does_without_a_fault(tmp_path: Path) -> None:
    expected, result = tmp_path / "expected", tmp_path / "result"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    logs = ("--log-dir", str(tmp_path / "logs"))
    ended_well(Running(tmp_path / "torchrun", *torchrun, *logs, SCRIPT, str(expected)), expected)
    with understudy_run(tmp_path / "swap", SCRIPT, str(result), "--kill-at", "5") as job:
        assert job.wait() == 0, job.output
        assert result.with_suffix(".killed").exists()
        assert "recovered in" in job.output
    assert result.read_text() == expected.read_text()


def test_leaving_the_loop_by_break_on_all_ranks(tmp_path: Path) -> None:
    result = tmp_path / "result"
    with understudy_run(tmp_path, SCRIPT, str(result), "--break-at", "4") as job:
        assert job.wait() == 0, job.output
        assert "recovered" not in job.output
    assert result.read_text().startswith("4 ")
