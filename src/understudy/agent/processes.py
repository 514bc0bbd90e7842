"""One worker process: started in a session of its own, watched by a pidfd, ended together with its helpers.

Knows: processes and signals. Does not know: ranks, messages, what a loss means. Called by the supervisor.

The kernel ends a worker when the agent dies (PR_SET_PDEATHSIG), so a killed agent leaves nothing behind.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from understudy.foundation.exits import DEVICE_LOST
from understudy.foundation.ids import StepNumber
from understudy.foundation.parenthood import children_of, die_with
from understudy.protocol.causes import Cause, CauseKind

_GONE = -int(signal.SIGKILL)
"""The return code of a process of which nothing more is known."""


def _ignore(_code: int) -> None:
    """The end of this process is ignored."""


class WatchedProcess:
    """A child in its own process group. `on_exit` is called once, in the loop, with Popen's return code.

    It may be watched before there is a process: one that a fork server has yet to fork. Ending it then needs no signal.
    """

    def __init__(self, on_exit: Callable[[int], None]) -> None:
        self.pid: int | None = None
        self.alive = True
        self._on_exit = on_exit
        self._reap: Callable[[], int] = lambda: _GONE
        self._loop = asyncio.get_running_loop()

    def watch(self, pid: int, reap: Callable[[], int]) -> None:
        """The process exists now. `reap` waits for its end and tells the return code."""
        if not self.alive:  # it was ended before it was forked
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            return
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end_unborn()
            return
        self.pid, self._reap = pid, reap
        self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._stop_watching()
        self._signal(signal.SIGKILL)  # helpers; the dead leader keeps the group's number from being reused
        code = self._reap()
        self.alive = False
        self._on_exit(code)

    def _stop_watching(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)

    def _end_unborn(self) -> None:
        self.alive = False
        self._loop.call_soon(self._on_exit, _GONE)

    def kill(self) -> None:
        if self.alive and self.pid is None:
            self._end_unborn()
        elif self.alive:
            self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end. A stopped process is woken, for it to see the question."""
        if self.alive and self.pid is None:
            self._end_unborn()
        elif self.alive:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def kill_and_wait(self, limit: float = 2.0) -> bool:
        """The way out when the loop no longer runs. False when the process has still not ended."""
        if not self.alive or self.pid is None:
            self.alive = False
            return True
        self.kill()
        deadline = time.monotonic() + limit
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        self._stop_watching()
        self._reap()
        self.alive = False
        return True

    def _signal(self, number: signal.Signals) -> None:
        assert self.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def start_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    on_exit: Callable[[int], None] = _ignore,
    keep_stdin: bool = False,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: tuple[int, ...] = (),
    watched: WatchedProcess | None = None,
) -> WatchedProcess:
    """`keep_stdin`: its input stays open for as long as it is watched. `watched`: what waits for this process."""
    watched = watched or WatchedProcess(on_exit)
    popen = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE if keep_stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 (it takes no lock that another thread could hold)
    )

    def reap() -> int:
        code = popen.wait()
        if popen.stdin is not None:
            with contextlib.suppress(OSError):
                popen.stdin.close()
        return code

    watched.watch(popen.pid, reap)
    return watched


def adopt_process(pid: int, watched: WatchedProcess) -> None:
    """A process that another one forked, and that is our child now."""
    watched.watch(pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def reap_orphans(ours: Collection[int]) -> None:
    """Bury dead children that are not `ours`: helpers of a worker that outlived it, and became our children."""
    for pid in set(children_of(os.getpid())) - set(ours):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def cause_of(code: int, step: int | None) -> Cause:
    """What a return code says by itself."""
    at = None if step is None else StepNumber(step)
    if code == DEVICE_LOST:
        detail = f"its device could not be used any more, and it ended itself (code {code})"
        return Cause(kind=CauseKind.EXIT, detail=detail, exit_code=code, step=at)
    if code >= 0:
        return Cause(kind=CauseKind.EXIT, detail=f"its process exited with code {code}", exit_code=code, step=at)
    return Cause(
        kind=CauseKind.SIGNAL, detail=f"its process was ended by {signal_name(-code)}", exit_code=code, step=at
    )


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
