"""One worker process: started in a session of its own, watched by a pidfd, ended together with its helpers.

Knows: processes and signals. Does not know: ranks, messages, what a loss means. Called by the supervisor.

The kernel ends a worker when the agent dies (PR_SET_PDEATHSIG), so a killed agent leaves nothing behind.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from understudy.foundation.ids import StepNumber
from understudy.protocol.causes import Cause, CauseKind

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with(parent: int) -> Callable[[], None]:
    """For the child, between fork and exec. If the parent has died already, nobody would send the signal."""

    def arrange() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


class WatchedProcess:
    """A child in its own process group. `on_exit` is called once, in the loop, with Popen's return code."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        on_exit: Callable[[int], None],
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self._on_exit = on_exit
        self._popen = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (this process has one thread)
        )
        self.pid = self._popen.pid
        self.alive = True
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._signal(signal.SIGKILL)  # helpers; the dead leader keeps the group's number from being reused
        code = self._popen.wait()
        self.alive = False
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        self._on_exit(code)

    def kill(self) -> None:
        if self.alive:
            self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end. A stopped process is woken, for it to see the question."""
        if self.alive:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def kill_and_wait(self, limit: float = 2.0) -> bool:
        """The way out when the loop no longer runs. False when the process has still not ended."""
        self.kill()
        try:
            self._popen.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.alive = False
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def cause_of(code: int, step: int | None) -> Cause:
    """What a return code says by itself."""
    at = None if step is None else StepNumber(step)
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
