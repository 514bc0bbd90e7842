"""The c10d store in a process of its own, so that no training rank hosts it.

The agent owns the listening socket and hands it to the process that hosts the store: the port is known at once, and a
store that died is started again on the same port, while clients wait in the socket's queue.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from understudy.agent.processes import WatchedProcess, signal_name, start_process

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 5.0
_HEALTHY_AFTER = 60.0


class StoreProcess:
    """Runs `command FD` until it is closed; `command FD --whole` once a start has failed, which takes the slow and sure
    way. `complain` is told when the store died."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], complain: Callable[[str], None], host: str
    ) -> None:
        self.host = host
        self._command, self._environment, self._complain = tuple(command), environment, complain
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._delay = _FIRST_DELAY
        self._closed = self._whole = False
        self._again: asyncio.TimerHandle | None = None
        self.process = self._start()

    def _start(self) -> WatchedProcess:
        descriptor = self._listener.fileno()
        self._started_at = time.monotonic()
        return start_process(
            (*self._command, str(descriptor), *(("--whole",) if self._whole else ())),
            environment=self._environment,
            on_exit=self._ended,
            keep_stdin=True,
            pass_fds=(descriptor,),
        )

    def _ended(self, code: int) -> None:
        if self._closed:
            return
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"
        self._complain(f"the store process {how}; it is started again on port {self.port}")
        if time.monotonic() - self._started_at > _HEALTHY_AFTER:
            self._delay = _FIRST_DELAY
        else:
            self._whole = True
        self._restart_later()

    def _restart_later(self) -> None:
        self._again = asyncio.get_running_loop().call_later(self._delay, self._restart)
        self._delay = min(self._delay * 2, _LONGEST_DELAY)

    def _restart(self) -> None:
        try:
            self.process = self._start()
        except OSError as error:
            self._complain(f"the store process could not be started: {error}")
            self._restart_later()

    def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self.process.alive:
            self.process.kill_and_wait()
        self._listener.close()
