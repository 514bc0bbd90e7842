"""The example package is installed from its folder, found, checked, used by a real run, and removed again."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.running import SCRIPTS, understudy_run, wait_until
from tests.house.sources import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(480)]
EXAMPLE = ROOT / "examples" / "plugins"
TOKEN = "the-monitor-of-the-test"


def install(folder: Path) -> Path:
    """From its own folder, without a network. A build leaves files beside what it reads, so a copy is built."""
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-index"),
        *("--no-deps", "--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")),
    ]
    subprocess.run(command, check=True, timeout=240)
    return folder / "site"


def plugins(*flags: str) -> str:
    command = [sys.executable, "-m", "understudy", "plugins", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def post(url: str, body: dict[str, str]) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/webhooks/node-problem", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_the_example_is_installed_found_used_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(site)]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for kind, name in (("detector", "long-step"), ("webhook", "node-problem")):
        (line,) = [line for line in plugins("--kind", kind, "--check").splitlines() if name in line]
        assert "understudy-example-plugins 0.1.0" in line and line.endswith("suite: passed")

    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "monitor"\nroles = ["webhook"]\ntoken = "{TOKEN}"\n')
    tokens.chmod(0o600)
    gate = tmp_path / "gate"
    script = (str(SCRIPTS / "small_steps.py"), "5", "--wait-at", "2", str(gate))
    http = ("--http", "127.0.0.1:0", "--http-tokens", str(tokens), "--detectors", "straggler,long-step")
    with understudy_run(tmp_path / "job", *script, flags=http) as job:
        job.wait_for_output("long-step: rank 1 has been in step")
        address = job.run_dir / "http.json"
        wait_until(address.exists, "the API is there")
        problem = {"node": "localhost", "problem": "KernelDeadlock", "since": "2026-11-18T06:00:00Z"}
        answer = post(json.loads(address.read_text())["url"], problem)
        assert answer["alerts"][0]["reason"] == "no rule fits alertname=KernelDeadlock"
        gate.touch()
        assert job.wait() == 0, job.output

    shutil.rmtree(site)
    assert "understudy-example-plugins" not in plugins()
    with understudy_run(tmp_path / "without", *script, flags=("--detectors", "long-step")) as job:
        assert job.wait() == 2, job.output
        assert "--detectors long-step: no installed package has a detector of that name; there is" in job.output
