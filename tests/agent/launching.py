"""Starts `understudy run` with stand-in workers and looks at what becomes of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from understudy.detection.process_state import process_state

HERE = Path(__file__).parent
READY = "ranks 2/2 up, spares: 1 warm"
PATIENCE = 60.0  # seconds; a limit for a broken machine, never waited for


def wait_until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if value := true():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE:g} s for: {what}")


class Launched:
    """One `understudy run`. Use `with`, so that a failed test leaves no process behind."""

    def __init__(self, folder: Path, *arguments: str, script: str = "stand_in.py") -> None:
        self.run_dir = folder / "run"
        self.out_path, self.err_path = folder / "out", folder / "err"
        flags, _, rest = " ".join(arguments).partition(" -- ")
        command = [sys.executable, str(HERE / "launch_without_store.py"), "run", "--run-dir", str(self.run_dir)]
        command += [*flags.split(), str(HERE / script), *rest.split()]
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder)

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids().values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    def pids(self) -> dict[str, int]:
        """By member; helpers as `helper-of-<member>`."""
        files = (self.run_dir / "pids").glob("*") if (self.run_dir / "pids").exists() else ()
        return {file.name: int(text) for file in files if (text := file.read_text())}

    def decisions(self) -> list[dict[str, Any]]:
        path = self.run_dir / "ledger" / "decisions.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kinds(self) -> list[str]:
        return [record.get("kind", record["type"]) for record in self.decisions()]

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: text in self.err or self.process.poll() is not None, text)
        assert text in self.err, self.err

    def wait_until_ready(self) -> None:
        """Two ranks are in their last step, and the spare is warm."""
        self.wait_for_line(READY)
        wait_until(lambda: {"m-0", "m-1"} <= {file.name for file in self.run_dir.glob("last/*")}, "the last step")

    def wait(self) -> int:
        code: int = self.process.wait(PATIENCE)
        return code

    def left_behind(self) -> dict[str, int]:
        return {member: pid for member, pid in self.pids().items() if alive(pid)}


def alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")
