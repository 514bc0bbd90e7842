"""`understudy run --http` with real workers: the same job, seen and moved from outside."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from understudy.ledger.reading import read_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
TOKEN = "the-operator-of-the-test"


def ask(url: str, path: str, body: dict[str, object] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=10) as answer:
        return json.load(answer)


def test_a_rank_is_moved_and_one_is_replaced_from_outside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "test"\nroles = ["act"]\ntoken = "{TOKEN}"\n')
    tokens.chmod(0o600)
    command = [
        *(sys.executable, "-m", "understudy", "run", "--no-progress", "--nproc-per-node", "2", "--spares", "1"),
        *("--run-dir", str(run), "--http", "127.0.0.1:0", "--http-tokens", str(tokens), "--health", "127.0.0.1:0"),
        *("-m", "understudy_testkit.faults.train_script", "--mode", "ddp", "--steps", "100000"),
    ]
    with open(tmp_path / "out", "wb") as out:
        job = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        until((run / "http.json").exists, tmp_path)
        url = json.loads((run / "http.json").read_text())["url"]
        until(lambda: is_ready(ask(url, "/v1/job"), generation=1), tmp_path)
        probes = re.findall(r"for probes on port (\d+)", (tmp_path / "out").read_text())[0]
        assert ask(f"http://127.0.0.1:{probes}", "/ready") == {"ready": True}
        answer = ask(url, "/v1/actions/migrate", {"ranks": [1], "reason": "a test"})
        assert answer["outcome"] == "accepted"
        until(lambda: is_ready(ask(url, "/v1/job"), generation=2), tmp_path)
        assert ask(url, "/v1/job")["last_recovery"]["kind"] == "move"
        ask(url, "/v1/actions/replace", {"rank": 0, "reason": "a test"})
        until(lambda: is_ready(ask(url, "/v1/job"), generation=3), tmp_path)
        steps = [member["step"] for member in ask(url, "/v1/members")]
        assert all(step > 0 for step in steps)
        reached = ask(url, "/v1/job")["committed_step"]
        until(lambda: ask(url, "/v1/job")["committed_step"] > reached, tmp_path)
    finally:
        job.terminate()
        job.wait(30)
    assert not (run / "http.json").exists()
    kinds = [record.kind for record in read_run(run).decisions]
    assert "move" in kinds and "swap" in kinds
    assert len((run / "ledger" / "audit.jsonl").read_text().splitlines()) == 2


def is_ready(job: dict[str, Any], generation: int) -> bool:
    return bool(job["generation"] == generation and job["stage"] == "training" and job["spares_warm"])


def until(true: Any, folder: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, (folder / "out").read_text()[-2000:]
        time.sleep(0.1)
