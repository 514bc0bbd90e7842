"""Which of our secrets the processes of a job can see, and who may read what a run leaves behind."""

import stat
from pathlib import Path

import pytest
from tests.end_to_end.running import SCRIPTS, processes, understudy_run, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
SECRETS = {"UNDERSTUDY_JOB_TOKEN", "UNDERSTUDY_API_TOKEN"}


def test_neither_ranks_nor_spares_nor_helpers_get_our_tokens(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "0123456789abcdef")
    script = (str(SCRIPTS / "shown_variables.py"), str(tmp_path), "--api-key", "never-kept")
    with understudy_run(tmp_path, *script, flags=("--redirects", "3")) as job:
        wait_until(lambda: len(list(tmp_path.glob("*.variables"))) == 3, "two ranks and a spare")
        started = [process for process in processes(mark) if process.pid != job.process.pid]
        assert len(started) >= 4, "two ranks, the store, the fork server"
        for process in started:
            with_what = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
            assert not SECRETS & {part.partition("=")[0] for part in with_what}, process.command
        (tmp_path / "go").touch()
        assert job.wait() == 0, job.output
    for file in tmp_path.glob("*.variables"):
        seen = set(file.read_text().splitlines())
        assert "UNDERSTUDY_SOCKET" in seen and not SECRETS & seen, file.name
    assert "--api-key ***" in job.output.replace("'", "") and "never-kept" not in job.output
    left = [job.run_dir, *job.run_dir.rglob("*")]
    assert {"run.json", "ledger", "logs", "decisions.jsonl"} < {path.name for path in left}, left
    for path in left:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert path.is_dir() or b"never-kept" not in path.read_bytes(), path
