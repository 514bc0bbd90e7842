"""The fork server as the agent sees it: it serves, it fails in every way, and the worker comes in any case."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.agent.launching import HERE, alive

from understudy.agent.fork_server import ForkServer
from understudy.agent.processes import WatchedProcess, reap_orphans
from understudy.foundation.parenthood import adopt_orphans

pytestmark = pytest.mark.processes

WORKER = """
import os, sys
print(os.environ["NAME"], os.getppid(), os.getsid(0) == os.getpid(), *sys.argv[1:], flush=True)
sys.exit(int(os.environ.get("CODE", "0")))
"""
SLEEPER = "import time; print('here', flush=True); time.sleep(60)"
REAL = (sys.executable, "-u", str(HERE / "fork_server_without_engine.py"))
DEAD = (sys.executable, "-S", "-E", "-c", "import sys; sys.exit(5)")
MUTE = (sys.executable, "-S", "-E", "-c", "import time; time.sleep(60)")
UNFIT = (
    *(sys.executable, "-S", "-E", "-c"),
    "import socket, sys, time\n"
    "line = socket.socket(fileno=int(sys.argv[1]))\n"
    'line.send(b\'{"type": "Ready", "unfit": "no reason"}\')\n'
    "time.sleep(60)",
)


class Scene:
    """A fork server and the workers that it is asked for."""

    def __init__(self, folder: Path, command: tuple[str, ...], worker: str) -> None:
        script = folder / "worker.py"
        script.write_text(worker)
        self.said: list[str] = []
        self.exits: asyncio.Queue[int] = asyncio.Queue()
        worker_command = (sys.executable, "-u", str(script), "one", "two words")
        self.fork_server = ForkServer(command, worker_command, dict(os.environ), self.said.append)
        self.read_end, self.write_end = os.pipe()

    def start(self, hurry: bool = False, **variables: str) -> WatchedProcess:
        return self.fork_server.start(
            {**os.environ, **variables},
            on_exit=self.exits.put_nowait,
            stdout=self.write_end,
            stderr=subprocess.DEVNULL,
            hurry=hurry,
        )

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.exits.get(), 20)

    def output(self) -> str:
        """Up to the end of a line, which may be written by itself."""
        said = os.read(self.read_end, 4096)
        while not said.endswith(b"\n"):
            said += os.read(self.read_end, 4096)
        return said.decode()

    def close(self) -> None:
        self.fork_server.close()
        os.close(self.read_end)
        os.close(self.write_end)


def play(
    tmp_path: Path, command: tuple[str, ...], story: Callable[[Scene], Awaitable[None]], worker: str = WORKER
) -> Scene:
    async def scene() -> Scene:
        adopt_orphans()
        stage = Scene(tmp_path, command, worker)
        try:
            await story(stage)
        finally:
            stage.close()
        return stage

    return asyncio.run(scene())


@pytest.mark.parametrize("command", [REAL, DEAD, UNFIT, ("/no/such/program",)])
def test_the_worker_comes_in_any_case(tmp_path: Path, command: tuple[str, ...]) -> None:
    async def story(stage: Scene) -> None:
        stage.start(NAME="it", CODE="7")
        assert await stage.exit_code() == 7
        assert stage.output() == f"it {os.getpid()} True one two words\n"

    stage = play(tmp_path, command, story)
    assert bool(stage.said) == (command != REAL)


def test_reasons_are_said(tmp_path: Path) -> None:
    async def story(stage: Scene) -> None:
        stage.start(NAME="it")
        await stage.exit_code()

    assert play(tmp_path, DEAD, story).said[0] == "the fork server exited with code 5; a new one is started"
    assert play(tmp_path, UNFIT, story).said == [
        "the fork server cannot be used (no reason); spares are started without it from now on"
    ]


@pytest.mark.parametrize("when", ["loading", "later"])
def test_a_fork_server_that_holds_a_device_forks_nothing(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for a file of the driver."""
    device = tmp_path / "nvidia0"
    device.write_text("")
    monkeypatch.setenv("STAND_IN", str(device))
    monkeypatch.setenv("WHEN", when)

    async def story(stage: Scene) -> None:
        for _ in range(2):
            stage.start(NAME="it")
            assert await stage.exit_code() == 0
            assert stage.output() == f"it {os.getpid()} True one two words\n"

    stage = play(tmp_path, (sys.executable, "-u", str(HERE / "fork_server_on_device.py")), story)
    assert stage.said == [
        f"the fork server cannot be used (an import has opened {device}, so a forked process could not use its "
        "device); spares are started without it from now on"
    ]


def test_who_is_in_a_hurry_does_not_wait_for_a_fork_server_that_is_not_ready(tmp_path: Path) -> None:
    async def story(stage: Scene) -> None:
        stage.start(hurry=True, NAME="it")
        assert await stage.exit_code() == 0

    assert not play(tmp_path, MUTE, story).said


def test_a_worker_is_ended_before_it_is_born(tmp_path: Path) -> None:
    async def story(stage: Scene) -> None:
        process = stage.start(NAME="it")
        process.kill()
        assert await stage.exit_code() == -signal.SIGKILL
        assert not process.alive
        assert process.kill_and_wait()
        second = stage.start(NAME="other")
        await stage.exit_code()
        assert second.pid is not None
        assert "other" in stage.output()
        reap_orphans([])  # of the first there is a process that nobody waited for, or has never been one
        family = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        fork_server = stage.fork_server.process
        assert fork_server is None or {int(child) for child in family} <= {fork_server.pid}

    play(tmp_path, REAL, story, WORKER)


def test_a_forked_worker_is_killed_like_any_other(tmp_path: Path) -> None:
    async def story(stage: Scene) -> None:
        process = stage.start(NAME="it")
        while process.pid is None:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(stage.output) == "here\n"
        title = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert title[1:] == [b"-u", str(tmp_path / "worker.py").encode(), b"one", b"two words"]
        process.kill()
        assert await stage.exit_code() == -signal.SIGKILL
        assert not alive(process.pid)

    play(tmp_path, REAL, story, SLEEPER)
