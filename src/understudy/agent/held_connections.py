"""Duplicates of the connections of every worker's groups, so that the death of a process does not break them.

gloo loses a send that it is about to write when the connection breaks: a rank that waits for it sleeps until the
group's timeout, and a live rank has to be ended as hanging. As long as the agent holds the dead process's ends, nothing
breaks. The others wait instead, are told of the loss, and break their own ends in quiescence
(`groups/quiescence.py`). A send that does not fit into the kernel's buffers is queued and would be lost in that moment
as well; so what is sent to a process that is dead or has left its step is read here and thrown away, and the send comes
to its end.

Knows: sockets. Does not know: why a member has left. Called by the supervisor.
"""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass

from understudy.errors import WireError
from understudy.foundation.ids import MemberId
from understudy.wire import fd_passing

_EMPTY_EVERY = 0.002
_READ_BYTES = 1 << 18
_LONGEST_HOLD = 30.0  # seconds after its owner has left; then a rank that still waits sees its connection break


@dataclass(slots=True)
class _Held:
    member: MemberId
    generation: int
    connection: socket.socket
    left_at: float | None = None  # its owner reads no more


class HeldConnections:
    def __init__(self, path: str, is_member: Callable[[str, str], bool]) -> None:
        self.refused = 0
        self._is_member = is_member
        self._held: list[_Held] = []
        self._path = fd_passing.address(path)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        _allow_many_descriptors()
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(self._path)
        self._line.setblocking(False)
        self._loop.add_reader(self._line.fileno(), self._take_all)

    def __len__(self) -> int:
        return len(self._held)

    def ended(self, member: MemberId, clean: bool) -> None:
        """Its process has ended. After a clean end no rank will be told to stop waiting for it: its ends are closed."""
        self._take_all()
        if clean:
            self._drop(lambda held: held.member == member)
        else:
            self._leave(lambda held: held.member == member)

    def left(self, member: MemberId, generation: int) -> None:
        """It will use the connections of generations before this one no more."""
        self._leave(lambda held: held.member == member and held.generation < generation)

    def close(self) -> None:
        self._loop.remove_reader(self._line.fileno())
        self._line.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._drop(lambda _: True)
        if self._timer is not None:
            self._timer.cancel()

    # -- taking -------------------------------------------------------------------------------------------------------

    def _take_all(self) -> None:
        while True:
            try:
                told, connections = fd_passing.receive(self._line)
            except WireError:
                self.refused += 1
                continue
            except OSError:  # nothing more, for now
                return
            if self._is_member(told.member, told.token):
                self._hold(MemberId(told.member), told.generation, connections)
            else:
                self.refused += 1
                for connection in connections:
                    connection.close()

    def _hold(self, member: MemberId, generation: int, connections: list[socket.socket]) -> None:
        """A rank that forms groups knows that all others have left those of former generations."""
        self._drop(lambda held: held.generation < generation and (held.member == member or held.left_at is not None))
        self._held += [_Held(member, generation, connection) for connection in connections]

    def _drop(self, concerns: Callable[[_Held], bool]) -> None:
        for held in [held for held in self._held if concerns(held)]:
            self._held.remove(held)
            held.connection.close()

    # -- emptying -----------------------------------------------------------------------------------------------------

    def _leave(self, concerns: Callable[[_Held], bool]) -> None:
        now = self._loop.time()
        for held in self._held:
            if held.left_at is None and concerns(held):
                held.left_at = now
        if self._timer is None:
            self._empty()

    def _empty(self) -> None:
        """Again and again, as long as a rank may still send."""
        oldest = self._loop.time() - _LONGEST_HOLD
        self._drop(lambda held: held.left_at is not None and held.left_at < oldest)
        for held in self._held:
            if held.left_at is not None:
                _throw_away(held.connection)
        waiting = any(held.left_at is not None for held in self._held)
        self._timer = self._loop.call_later(_EMPTY_EVERY, self._empty) if waiting else None


def _throw_away(connection: socket.socket) -> None:
    try:
        while connection.recv(_READ_BYTES, socket.MSG_DONTWAIT):
            pass
    except OSError:  # nothing there, or broken from the other side
        return


def _allow_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
