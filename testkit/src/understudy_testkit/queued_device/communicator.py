"""One communicator, from being formed to its end: how its operations go when the queue comes to them.

Nothing here raises in the queue. An operation whose peer is gone stands still until the communicator is aborted, and so
does all that is queued behind it. Once it is aborted here, each operation of it that is not finished ends with a
pattern in what it should have received. Once a peer has aborted it, operations that need that peer end with another
pattern, as if all were well. gloo works on copies, so that what is left behind in it cannot come late and write into
anything.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from understudy_testkit.queued_device.gloo import Gloo
from understudy_testkit.queued_device.notices import Notices, Progress

OWN_ABORT = 0x5A  # every byte of what was received after an abort of one's own
PEERS_ABORT = 0x4B  # and after that of a peer
_LOOK_AT_NOTICES_EVERY = 0.01

OfGloo = Callable[[torch.Tensor], torch.Tensor]  # the copy that gloo works on


@dataclass(frozen=True, slots=True)
class Operation:
    """`begin` starts it on gloo and returns gloo's works. `to`, `senders`: of messages; a collective has none."""

    name: str
    begin: Callable[[Any, OfGloo], list[Any]]
    reads: Sequence[torch.Tensor] = ()
    writes: Sequence[torch.Tensor] = ()
    to: tuple[int, ...] = ()
    senders: tuple[int, ...] = ()

    @property
    def is_collective(self) -> bool:
        return not self.to and not self.senders


class Communicator:
    """`notices`: None without contagion."""

    def __init__(self, gloo: Gloo, unique: int, notices: Notices | None) -> None:
        self.unique = unique
        self._gloo, self._notices = gloo, notices
        self._changed = threading.Condition()
        self._aborted = False
        self._progress = Progress()
        self._begun: float | None = None

    @property
    def aborted(self) -> bool:
        return self._aborted

    def running_for(self) -> float:
        """Seconds since the queue began the operation that it is at, if it is one of this communicator."""
        begun = self._begun
        return time.monotonic() - begun if begun is not None else 0.0

    def abort(self) -> None:
        """From any thread, and more than once. Returns at once."""
        with self._changed:
            first, self._aborted = not self._aborted, True
            self._changed.notify_all()
        if first and self._notices is not None:
            self._notices.give(self._progress)

    def leave(self) -> None:
        self.abort()
        self._gloo.leave()

    # -- in the queue -------------------------------------------------------------------------------------------------

    def run(self, operation: Operation) -> None:
        self._begun = time.monotonic()
        try:
            pattern = self._carry_out(operation)
        finally:
            self._begun = None
        if pattern is not None:
            for tensor in operation.writes:
                spoil(tensor, pattern)

    def _carry_out(self, operation: Operation) -> int | None:
        """None, or the pattern that it ends with."""
        if self._aborted:
            return OWN_ABORT
        if self._is_spoilt(operation):
            self._note(operation)
            return PEERS_ABORT
        attempt = _Attempt(self._gloo.backend, operation, self._changed)
        while True:
            with self._changed:
                if not (self._aborted or attempt.succeeded):
                    self._changed.wait(_LOOK_AT_NOTICES_EVERY)
                if self._aborted:
                    return OWN_ABORT
                if attempt.succeeded:
                    self._note(operation)
                    break
            if self._is_spoilt(operation):
                self._note(operation)
                return PEERS_ABORT
        attempt.deliver()
        return None

    def _note(self, operation: Operation) -> None:
        """It is finished. What an abort says about progress must not change afterwards."""
        with self._changed:
            if not self._aborted:
                self._progress.collectives += operation.is_collective
                self._progress.sent.update(operation.to)
                self._progress.received.update(operation.senders)

    def _is_spoilt(self, operation: Operation) -> bool:
        """Has a peer whose part it needs aborted before it had given it?"""
        aborted = self._notices.look() if self._notices is not None else {}
        own, rank = self._progress, self._notices.rank if self._notices is not None else -1
        for peer, theirs in aborted.items():
            if operation.is_collective and theirs.collectives <= own.collectives:
                return True
            if peer in operation.senders and theirs.sent[rank] <= own.received[peer]:
                return True
            if peer in operation.to and theirs.received[rank] <= own.sent[peer]:
                return True
        return False


class _Attempt:
    """gloo at work on copies, in a thread that can be left behind: its works do not tell when they are finished."""

    def __init__(self, backend: Any, operation: Operation, changed: threading.Condition) -> None:
        self._operation, self._changed = operation, changed
        self._copies: dict[int, torch.Tensor] = {}
        for tensor in (*operation.reads, *operation.writes):
            self._copies.setdefault(id(tensor), tensor.clone())
        self.succeeded = False
        threading.Thread(target=self._run, args=(backend,), name="queued-device-gloo", daemon=True).start()

    def _run(self, backend: Any) -> None:
        try:
            for work in self._operation.begin(backend, lambda tensor: self._copies[id(tensor)]):
                work.wait()
        except Exception as trouble:  # a peer is gone: a GPU would not be told, so it is only said to a reader
            print(f"queued device: {self._operation.name} will not end: {trouble}", file=sys.stderr, flush=True)
            return
        with self._changed:
            self.succeeded = True
            self._changed.notify_all()

    def deliver(self) -> None:
        for tensor in self._operation.writes:
            tensor.copy_(self._copies[id(tensor)])


def spoil(tensor: torch.Tensor, pattern: int) -> None:
    contiguous = torch.empty(tensor.shape, dtype=tensor.dtype)
    contiguous.view(-1).view(torch.uint8).fill_(pattern)
    tensor.copy_(contiguous)
