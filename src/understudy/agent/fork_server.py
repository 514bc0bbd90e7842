"""Gets workers from a fork server: a process that has imported everything heavy and is forked for each of them.

The fork server's own side is `training/fork_server.py`. A worker that was forked is a child of the agent like every
other (the agent adopts it), so nothing else in the agent knows the difference. Whenever the fork server cannot help,
for whatever reason, the worker is started the usual way: the command is run.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from understudy.agent.processes import WatchedProcess, adopt_process, signal_name, start_process
from understudy.wire import fork_messages

_LIVES = 3  # fork servers that may die in one run; then spares are started without one
_PATIENCE = 120.0  # seconds for a fork; loading the engine from a slow disk is part of it


@dataclass(frozen=True, slots=True)
class _Expected:
    """A worker that was asked for and is not forked yet, with all that is needed to start it the usual way."""

    watched: WatchedProcess
    environment: Mapping[str, str]
    streams: tuple[int, int]
    limit: asyncio.TimerHandle

    def close(self) -> None:
        self.limit.cancel()
        for stream in self.streams:
            os.close(stream)


class ForkServer:
    """`command FD *worker_command` is the fork server; `say` is told when it cannot be used any more."""

    def __init__(
        self,
        command: Sequence[str],
        worker_command: Sequence[str],
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._command, self._worker_command = tuple(command), tuple(worker_command)
        self._environment, self._say = environment, say
        self._loop = asyncio.get_running_loop()
        self._expected: dict[int, _Expected] = {}
        self._asked = 0
        self._lives = _LIVES
        self._closed = False
        self._why: str | None = None  # the fork server has ended or must end
        self._line: socket.socket | None = None
        self._open()

    # -- what the supervisor asks for ----------------------------------------------------------------------------------

    @property
    def expecting(self) -> bool:
        return bool(self._expected)

    def start(
        self,
        environment: Mapping[str, str],
        *,
        on_exit: Callable[[int], None],
        stdout: int | None,
        stderr: int | None,
        hurry: bool,
    ) -> WatchedProcess:
        """`hurry`: do not wait for a fork server that is still loading."""
        if self._line is None or (hurry and not self._ready):
            return start_process(
                self._worker_command, environment=environment, on_exit=on_exit, stdout=stdout, stderr=stderr
            )
        self._asked += 1
        number = self._asked
        limit = self._loop.call_later(_PATIENCE, self._give_up, f"has not answered for {_PATIENCE:g} s")
        streams = (_own_copy(stdout, 1), _own_copy(stderr, 2))
        expected = _Expected(WatchedProcess(on_exit), environment, streams, limit)
        wanted = fork_messages.Fork(number=number, agent=os.getpid(), environment=dict(environment))
        try:
            socket.send_fds(self._line, [fork_messages.encode(wanted)], streams)
            self._expected[number] = expected
        except OSError:  # the packet is too large, the line is full or has just ended
            self._start_without(expected)
        return expected.watched

    def close(self) -> None:
        self._closed = True
        self._end_line()
        for expected in self._expected.values():
            expected.close()
        self._expected.clear()
        if self.process is not None and self.process.alive:
            self.process.kill_and_wait()

    # -- the fork server's life ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._ready, self._why = False, None
        self.process: WatchedProcess | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptor = theirs.fileno()
        try:
            self.process = start_process(
                (*self._command, str(descriptor), *self._worker_command),
                environment=self._environment,
                on_exit=self._on_exit,
                pass_fds=(descriptor,),
            )
        except OSError as error:
            self._say(f"the fork server could not be started ({error}); spares are started without it")
            ours.close()
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._line = ours
        self._loop.add_reader(ours, self._read)

    def _read(self) -> None:
        while self._line is not None:
            try:
                data = self._line.recv(fork_messages.LIMIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            match fork_messages.decode_from_fork_server(data) if data else None:
                case fork_messages.Ready(unfit=None):
                    self._ready = True
                case fork_messages.Ready(unfit=reason):
                    self._lives = 0
                    self._give_up(f"cannot be used ({reason})")
                case fork_messages.Forked(number=number, pid=pid):
                    expected = self._expected.pop(number)
                    adopt_process(pid, expected.watched)
                    expected.close()
                case None:
                    self._give_up(None)

    def _give_up(self, why: str | None) -> None:
        """Ends the fork server. Workers that it has not forked are started without it when it has ended."""
        self._why = self._why or why
        self._end_line()
        if self.process is not None and self.process.alive:
            self.process.kill()
        else:
            self._replace()

    def _on_exit(self, code: int) -> None:
        self._why = self._why or (f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}")
        if self._line is None:
            self._replace()
        else:
            self._read()  # to the end of the line: workers that it has forked may still speak

    def _replace(self) -> None:
        if self._closed:
            return
        self._lives = max(0, self._lives - 1)
        then = "a new one is started" if self._lives else "spares are started without it from now on"
        self._say(f"the fork server {self._why}; {then}")
        expected, self._expected = self._expected, {}
        for worker in expected.values():
            self._start_without(worker)
        if self._lives:
            self._open()

    def _end_line(self) -> None:
        if self._line is not None:
            self._loop.remove_reader(self._line)
            self._line.close()
            self._line = None

    def _start_without(self, expected: _Expected) -> None:
        if expected.watched.alive:
            try:
                start_process(
                    self._worker_command,
                    environment=expected.environment,
                    stdout=expected.streams[0],
                    stderr=expected.streams[1],
                    watched=expected.watched,
                )
            except OSError as error:
                self._say(f"a spare could not be started: {error}")
                expected.watched.kill()
        expected.close()


def _own_copy(stream: int | None, inherited: int) -> int:
    """A descriptor to send: of the given stream, of nothing (DEVNULL), or of our own (None)."""
    if stream == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):
        return os.dup(inherited if stream is None else stream)
    return os.open(os.devnull, os.O_WRONLY)  # our own stream is closed
