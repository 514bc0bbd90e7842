"""Faults strike real processes from outside, in order, and prove it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from understudy.detection.process_state import process_state
from understudy_testkit.benchmark.arms.arm import Command
from understudy_testkit.benchmark.injection import FaultInjector
from understudy_testkit.benchmark.processes import MarkedRun
from understudy_testkit.benchmark.recording import Board
from understudy_testkit.benchmark.scenario import Faults, Scenario, Work

pytestmark = pytest.mark.processes


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])


def struck_by(faults: Faults, process: "subprocess.Popen[bytes]", folder: Path) -> FaultInjector:
    scenario = Scenario(name="x", title="x", work=Work(ranks=1, steps=50), faults=faults)
    board = Board(folder, 1)
    board.show(0, process.pid, 0)
    injector = FaultInjector(scenario, board)
    injector.look()
    assert not injector.fired, "its step is not reached"
    board.show(0, process.pid, 49)
    deadline = time.monotonic() + 20
    while not injector.fired and time.monotonic() < deadline:
        injector.look()
    return injector


def test_a_kill_is_proven(tmp_path: Path) -> None:
    process = sleeper()
    injector = struck_by(Faults(kill=1, first_step=10, last_step=40), process, tmp_path)
    assert "state Z" in injector.fired[0].proof or "gone" in injector.fired[0].proof
    assert process.wait(20) == -signal.SIGKILL and injector.remaining == 0


def test_a_hang_is_a_stopped_process(tmp_path: Path) -> None:
    process = sleeper()
    try:
        injector = struck_by(Faults(hang=1, first_step=10, last_step=40), process, tmp_path)
        assert "state T" in injector.fired[0].proof
    finally:
        process.kill()
        process.wait(20)


def test_a_straggler_goes_on_afterwards(tmp_path: Path) -> None:
    process = sleeper()
    try:
        injector = struck_by(Faults(slow=1, first_step=10, last_step=40, slow_seconds=0.3), process, tmp_path)
        deadline = time.monotonic() + 20
        while process_state(process.pid) == "T" or time.monotonic() < injector.fired[0].at + 0.4:
            assert time.monotonic() < deadline
            injector.look()
        assert process_state(process.pid) == "S"
    finally:
        process.kill()
        process.wait(20)


def test_a_run_leaves_nothing_behind_not_even_what_is_stopped_or_in_another_session(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], "
    child += "start_new_session=True); print('up', flush=True); import signal; signal.pause()"
    with MarkedRun(Command(arguments=(sys.executable, "-c", child)), tmp_path / "output.txt") as run:
        deadline = time.monotonic() + 20
        while len(run.processes()) < 2 or "up" not in (tmp_path / "output.txt").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for pid in run.processes():
            os.kill(pid, signal.SIGSTOP)
    assert run.processes() == [] and run.exit_code == -signal.SIGKILL
