"""A process of a rank: `python -m understudy.cli.examination.accelerators.rank_process SOCKET`.

It connects to the doctor, and does what it is asked for, one thing at a time in its main thread, which is the one that
uses the device. A question that goes `beside` is answered by the thread that reads, as a member's control thread would:
so a rank can be told to break its communicators while its main thread waits. What it can do is in `verbs`.
"""

import importlib
import os
import queue
import socket
import sys
import threading
import time

import msgspec

from understudy.cli.examination.accelerators.rank import Answer, Question
from understudy.cli.examination.accelerators.verbs import VERBS
from understudy.cli.examination.accelerators.verbs.held import Held

_LONGEST_ERROR = 2000


class RankProcess:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._writing = threading.Lock()
        self._asked: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._held = Held()

    def serve(self) -> None:
        """Until the doctor closes the line."""
        self._line.sendall(b"%d\n" % os.getpid())
        threading.Thread(target=self._listen, name="understudy-control", daemon=True).start()
        while (question := self._asked.get()) is not None:
            self._answer(question)

    def _listen(self) -> None:
        for line in self._line.makefile("rb"):
            question = msgspec.json.decode(line, type=Question)
            if question.beside:
                self._answer(question)
            else:
                self._asked.put(question)
        os._exit(0)  # the doctor has gone, and the main thread may hang

    def _answer(self, question: Question) -> None:
        began = time.monotonic()
        try:
            module, _, name = VERBS[question.verb].partition(":")
            content, error = getattr(importlib.import_module(module), name)(self._held, **question.arguments), None
        except BaseException as trouble:
            content, error = {}, f"{type(trouble).__name__}: {trouble}"[:_LONGEST_ERROR]
        answer = Answer(question.number, content or {}, error, time.monotonic() - began)
        with self._writing:
            self._line.sendall(msgspec.json.encode(answer) + b"\n")


def main(path: str) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    RankProcess(line).serve()


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)
