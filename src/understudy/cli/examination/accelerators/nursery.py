"""Processes of ranks, forked from the product's own fork server, as spares are: with a real driver that shows that a
process that was forked can use its device.

They become children of this process. If the fork server cannot be used, they are started, and `unfit` says why.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from understudy.foundation.parenthood import adopt_orphans
from understudy.wire import fork_messages

_MODULE = "understudy.cli.examination.accelerators.rank_process"
_LOADING, _FORKING = 180.0, 30.0  # seconds


class Nursery:
    """`socket_path`: where a process that was born reports."""

    def __init__(self, socket_path: Path, environment: Mapping[str, str], log: Path) -> None:
        adopt_orphans()
        self._environment = environment
        self._command = (sys.executable, "-u", "-m", _MODULE, str(socket_path))
        self._forked = 0
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = (sys.executable, "-u", "-m", "understudy.training.fork_server", str(theirs.fileno()))
        with theirs, log.open("wb") as output:
            self._server = subprocess.Popen(
                (*server, *self._command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
            )
        self._loaded = False
        self._why: str | None = None

    def unfit(self) -> str | None:
        """Why it cannot be used. Waits until it is loaded."""
        if not self._loaded:
            self._loaded = True
            self._line.settimeout(_LOADING)
            try:
                said = fork_messages.decode_from_fork_server(self._line.recv(fork_messages.LIMIT))
                self._why = said.unfit if isinstance(said, fork_messages.Ready) else "it says something else first"
            except (OSError, ValueError) as error:
                self._why = f"it does not come to be: {error}"
        return self._why

    def bear(self, log: Path, variables: Mapping[str, str]) -> int:
        """Its process id. `log`: where what it prints is added."""
        environment = {**self._environment, **variables}
        with log.open("ab") as output:
            if self.unfit() is not None:
                started = subprocess.Popen(
                    self._command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
                started.returncode = 0  # it is waited for by its number, as those that were forked are
                return started.pid
            self._forked += 1
            wanted = fork_messages.Fork(number=self._forked, agent=os.getpid(), environment=environment)
            socket.send_fds(self._line, [fork_messages.encode(wanted)], [output.fileno(), output.fileno()])
            self._line.settimeout(_FORKING)
            while True:
                said = fork_messages.decode_from_fork_server(self._line.recv(fork_messages.LIMIT))
                if isinstance(said, fork_messages.Forked) and said.number == self._forked:
                    return said.pid

    def close(self) -> None:
        self._line.close()  # which ends it
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
