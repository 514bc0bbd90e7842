"""Which sockets belong to the process groups, and how to break them.

gloo has no abort: after a SIGSTOP or a cut link all ranks in a collective wait for the group's timeout. Shutting down
the group's own connections makes a blocked call raise within milliseconds, from any thread. gloo does not tell which
sockets are its own. But ranks tell each other through the store where they listen, so a group's connections are those
that appear while it is formed and have such an address at one of their ends. Whatever else a script opens meanwhile
(downloads, name servers), and the store's own client, does not matter here.

A script may destroy a group of its own; the end of that group's connections is no loss of a peer.
"""

import contextlib
import fcntl
import os
import select
import socket
import stat
import struct
import termios
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BROKEN = select.POLLHUP | select.POLLERR | select.POLLRDHUP | select.POLLNVAL


def open_sockets() -> dict[int, str]:
    """Descriptor -> identity of every socket of this process."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def _is_still(descriptor: int, name: str) -> bool:
    """Of one descriptor, as cheap as can be: it is asked for every connection in every step."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and name == f"socket:[{found.st_ino}]"


class Connections:
    """The connections of this process's groups. `break_all` may be called from any thread at any time.

    `exists` says whether the script still has a group of that name. `formed` is told of every group's new connections.
    """

    def __init__(
        self,
        exists: Callable[[str], bool] = lambda _: True,
        formed: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        self._exists, self._formed = exists, formed
        self._lock = threading.Lock()
        self._owned: dict[int, str] = {}
        self._group_of: dict[int, str] = {}
        self._before: dict[int, str] | None = None
        self._heard: list[bytes] = []  # what went through the store while a group is formed
        self._poll = select.poll()

    @contextmanager
    def forming(self, group: str = "", fresh: bool = False, keep: str | None = None) -> Iterator[None]:
        """Sockets that appear inside belong to `group`; with `fresh` those of all groups so far are forgotten, but not
        those of `keep`."""
        with self._lock:
            if fresh:
                self._owned = {fd: name for fd, name in self._owned.items() if self._group_of[fd] == keep}
            self._before, self._heard = open_sockets(), []
        try:
            yield
        finally:
            with self._lock:
                appeared = self._appeared()
                self._owned.update(appeared)
                self._group_of.update(dict.fromkeys(appeared, group))
                self._before, self._heard = None, []
                self._poll = select.poll()
                for descriptor in self._owned:
                    self._poll.register(descriptor, select.POLLRDHUP)
            self._formed(list(appeared))

    def hold(self, group: str, backend: object) -> None:
        """A backend does not say which sockets are its own."""

    def hear(self, value: bytes) -> None:
        """Something that was told through the store, by this rank or another one."""
        if self._before is not None:
            self._heard.append(value)

    def broken(self) -> bool:
        """Has any peer gone, as far as the kernel knows?

        gloo closes a connection of a group that still exists only when its peer is gone. The number of that connection
        may be that of a file or of another socket a moment later, and all may be well with those."""
        ended = [descriptor for descriptor, event in self._poll.poll(0) if event & _BROKEN]
        ended += [descriptor for descriptor, name in list(self._owned.items()) if not _is_still(descriptor, name)]
        return any(self._matters(descriptor) for descriptor in dict.fromkeys(ended))

    def _matters(self, descriptor: int) -> bool:
        """Connections of a group that the script has destroyed are forgotten when they end."""
        if self._exists(self._group_of[descriptor]):
            return True
        with self._lock:
            self._poll.unregister(descriptor)
            del self._owned[descriptor]
        return False

    def break_all(self) -> int:
        """Make every blocked operation of the groups fail now. Returns how many connections were shut down."""
        with self._lock:
            ours = {**self._owned, **self._appeared()}
        return shut_down(ours)

    def break_group(self, group: str) -> int:
        """Only its connections."""
        with self._lock:
            ours = {fd: name for fd, name in self._owned.items() if self._group_of[fd] == group}
        return shut_down(ours)

    def unsent(self) -> bool:
        """Does the kernel still hold something that a group of the script has sent? Then more may be queued behind
        it. (No thread waits for what else is sent.)"""
        with self._lock:
            ours = {fd: name for fd, name in self._owned.items() if self._exists(self._group_of[fd])}
        return any(_has_unsent(descriptor) for descriptor in _still_open(ours))

    def _appeared(self) -> dict[int, str]:
        return {} if self._before is None else appeared_since(self._before, self._was_told)

    def _was_told(self, connection: socket.socket) -> bool:
        ends = (as_bytes(connection.getsockname()), as_bytes(connection.getpeername()))
        return any(end in value for value in list(self._heard) for end in ends)


def as_bytes(address: tuple[str, int] | tuple[str, int, int, int]) -> bytes:
    """As the kernel writes an address, which is how gloo tells it to others."""
    port = address[1].to_bytes(2, "big")
    if ":" not in address[0]:
        return struct.pack("=H", socket.AF_INET) + port + socket.inet_aton(address[0])
    host = socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])
    return struct.pack("=H", socket.AF_INET6) + port + bytes(4) + host


def appeared_since(before: dict[int, str], wanted: Callable[[socket.socket], bool]) -> dict[int, str]:
    """TCP connections that were not there `before`, as far as they are `wanted`."""
    return {
        descriptor: name
        for descriptor, name in open_sockets().items()
        if before.get(descriptor) != name and _is_connection(descriptor, wanted)
    }


def shut_down(sockets: dict[int, str]) -> int:
    """A thread that is blocked in one of them is woken. Returns how many were still open."""
    return sum(_shut_down(descriptor) for descriptor in _still_open(sockets))


def _still_open(sockets: dict[int, str]) -> list[int]:
    """Descriptors that are still what they were: a number is given again once its socket is closed."""
    return [descriptor for descriptor, name in sockets.items() if _is_still(descriptor, name)]


def _has_unsent(descriptor: int) -> bool:
    found = array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, found)
    return found[0] > 0


def _is_connection(descriptor: int, wanted: Callable[[socket.socket], bool]) -> bool:
    found = False

    def look(connection: socket.socket) -> None:
        nonlocal found
        found = wanted(connection)

    return _with_duplicate(descriptor, look) and found


def _shut_down(descriptor: int) -> bool:
    """Only the way in. gloo reads the end of it and closes the connection itself, which tells all threads that wait.
    With the way out shut down too, a send that is posted before gloo has read that end fails silently: its waiter
    sleeps on.
    """
    return _with_duplicate(descriptor, lambda connection: connection.shutdown(socket.SHUT_RD))


def _with_duplicate(descriptor: int, act: Callable[[socket.socket], None]) -> bool:
    """Act on a duplicate of a connected TCP socket; listening sockets and all others are left alone."""
    try:
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return False
    with connection:
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                return False
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            act(connection)
        except OSError:
            return False
    return True
