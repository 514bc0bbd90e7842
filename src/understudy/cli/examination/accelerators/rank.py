"""A process that holds a rank, as the doctor sees it: it is asked to do something, and may be killed or stopped.

Every question has a limit, after which the process counts as hanging: nothing here waits without end.
"""

import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from understudy.cli.examination.accelerators.contract import Disproved

WITHIN = 60.0
"""Seconds for what takes a moment on a machine that is well."""


class RankFailed(Disproved):
    """A process did not answer, has died, or its answer is an error."""


class Question(msgspec.Struct, frozen=True):
    """`verb`: a function of the rank's process. `beside`: in a thread beside the one that works."""

    number: int
    verb: str
    arguments: dict[str, Any] = {}
    beside: bool = False


class Answer(msgspec.Struct, frozen=True):
    """`error`: why there is none. `took`: seconds in the rank's process."""

    number: int
    content: dict[str, Any] = {}
    error: str | None = None
    took: float = 0.0


class Rank:
    """`name`: for people."""

    def __init__(self, name: str, pid: int, line: socket.socket) -> None:
        self.name, self.pid = name, pid
        self._line, self._unread = line, b""
        self._asked = 0
        self._answers: dict[int, Answer] = {}
        self._ended = False

    # -- asking -------------------------------------------------------------------------------------------------------

    def begin(self, verb: str, *, beside: bool = False, **arguments: Any) -> int:
        """Returns what `end` wants."""
        self._asked += 1
        question = Question(self._asked, verb, arguments, beside)
        try:
            self._line.sendall(msgspec.json.encode(question) + b"\n")
        except OSError as error:
            raise RankFailed(f"{self.name} cannot be asked for {verb}: {error}") from None
        return self._asked

    def end(self, question: int, within: float = WITHIN) -> Answer:
        deadline = time.monotonic() + within
        while question not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RankFailed(f"{self.name} has not answered within {within:g} s")
            self._read(left)
        answer = self._answers.pop(question)
        if answer.error is not None:
            raise RankFailed(f"{self.name}: {answer.error}")
        return answer

    def do(self, verb: str, *, within: float = WITHIN, beside: bool = False, **arguments: Any) -> Mapping[str, Any]:
        return self.timed(verb, within=within, beside=beside, **arguments).content

    def timed(self, verb: str, *, within: float = WITHIN, beside: bool = False, **arguments: Any) -> Answer:
        try:
            return self.end(self.begin(verb, beside=beside, **arguments), within)
        except RankFailed as failed:
            raise RankFailed(f"{verb}: {failed}") from None

    def _read(self, seconds: float) -> None:
        self._line.settimeout(max(0.001, seconds))
        try:
            got = self._line.recv(1 << 16)
        except TimeoutError:
            return
        except OSError:
            got = b""
        if not got:
            raise RankFailed(f"{self.name} has ended: {self._epitaph()}")
        *lines, self._unread = (self._unread + got).split(b"\n")
        for line in lines:
            answer = msgspec.json.decode(line, type=Answer)
            self._answers[answer.number] = answer

    # -- its end ------------------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        if not self._ended:
            os.kill(self.pid, number)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def kill(self) -> None:
        """It is gone when this returns."""
        if self._ended:
            return
        os.kill(self.pid, signal.SIGKILL)
        self._reap(WITHIN)
        self._line.close()

    def _reap(self, within: float) -> int | None:
        deadline = time.monotonic() + within
        while not self._ended:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = True
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                raise RankFailed(f"{self.name} (process {self.pid}) does not end")
            time.sleep(0.002)
        return None

    def _epitaph(self) -> str:
        code = self._reap(5.0)
        return "its end was seen already" if code is None else f"exit code {code}; what it said is in the archive"
