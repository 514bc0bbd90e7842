"""The coordinator's connections to many hosts: one per agent, orders go out, events come in.

Knows which hosts are connected and where each member lives. Does not know the transport (`service` has that) and
decides nothing. A connection that does not take its messages is closed: its agent connects again and is told what it
needs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from understudy.errors import WireError
from understudy.foundation.ids import HostId, MemberId
from understudy.protocol import commands as cmd
from understudy.wire import host_messages as wire

_MOST_WAITING = 20_000  # messages
_MOST_BYTES = 256 * 1024 * 1024  # in them


@dataclass(slots=True, eq=False)
class HostConnection:
    """To one connected agent, which is at `peer`. `on_close`: ends the connection, whatever it is waiting for.
    `certificate_ends`: as the agent tells it, as Unix time."""

    host: HostId
    agent: str = ""
    peer: str = ""
    on_close: Callable[[], object] = lambda: None
    closed: bool = False
    said_farewell: bool = False
    certificate_ends: int | None = None
    _waiting: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    _bytes: int = 0

    def put(self, message: wire.ToHost) -> None:
        if self.closed:
            return
        if self._waiting.qsize() >= _MOST_WAITING or self._bytes >= _MOST_BYTES:
            self.close()
            return
        data = wire.encode(message)
        self._bytes += len(data)
        self._waiting.put_nowait(data)

    async def take(self) -> bytes:
        data = await self._waiting.get()
        self._bytes -= len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.on_close()


class HostConnections:
    """Implements `effects.Effects`. What is meant for a host that is away is dropped: it will be said again."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.lines: dict[HostId, HostConnection] = {}
        self.stopped: cmd.StopJob | None = None
        self.dropped: Counter[str] = Counter()
        self._host_of: dict[MemberId, HostId] = {}
        self.when_stopped: Callable[[cmd.StopJob], None] = lambda _: None
        self.all_gone = asyncio.Event()
        self.all_gone.set()

    # -- lines --------------------------------------------------------------------------------------------------------

    def open(self, host: HostId, agent: str = "", peer: str = "") -> HostConnection:
        """An agent that connects again takes the place of its former line, which may not have noticed its end yet.
        Raises `WireError` if another agent is connected under this name."""
        former = self.lines.get(host)
        if former is not None and not former.closed and former.agent != agent:
            raise WireError(
                f"another agent is connected as host {host} (from {former.peer or 'elsewhere'}; this one is at "
                f"{peer or 'an unknown address'}): give each host a name of its own with --host-name",
                kind="name taken",
            )
        if former is not None:
            former.close()
        line = self.lines[host] = HostConnection(host, agent, peer)
        self.all_gone.clear()
        return line

    def certificate_ends(self) -> dict[HostId, int]:
        """Of the hosts that are connected and have told it."""
        told = {host: line.certificate_ends for host, line in self.lines.items()}
        return {host: at for host, at in told.items() if at is not None}

    def close_all(self) -> None:
        for line in list(self.lines.values()):
            line.close()

    def gone(self, line: HostConnection) -> bool:
        """True if it was the host's present line, so that the host is silent now."""
        line.closed = True
        if self.lines.get(line.host) is not line:
            return False
        del self.lines[line.host]
        if not self.lines:
            self.all_gone.set()
        return True

    def lives_on(self, member: MemberId, host: HostId) -> None:
        self._host_of[member] = host

    def home_of(self, member: MemberId) -> HostId | None:
        return self._host_of.get(member)

    # -- effects -----------------------------------------------------------------------------------------------------

    def carry_out(self, command: cmd.ToAgent) -> None:
        match command:
            case cmd.StartMember(member=member, host=host):
                self._host_of[member] = host
                self._order(host, command)
            case cmd.DismissStranger(host=host):
                self._order(host, command)
            case cmd.WatchClosely(hosts=hosts):
                for watching in hosts or tuple(self.lines):
                    self._order(watching, structs.replace(command, hosts=(watching,)))
            case cmd.KillMember(member=member):
                self._order(self._host_of.get(member), command)
            case cmd.StopJob():
                self._stop(command)
            case _:
                self._tell(command)

    def _tell(self, command: cmd.ToMember) -> None:
        """Once to each host, with its own members in it."""
        by_host: dict[HostId | None, list[MemberId]] = {}
        for member in cmd.members_of(command):
            by_host.setdefault(self._host_of.get(member), []).append(member)
        for host, members in by_host.items():
            self._order(host, cmd.addressed_to(command, members))

    def keep_elsewhere(self, host: HostId, left: wire.Bequeathed) -> None:
        """Give a copy of what a rank of `host` left to the host that comes after it."""
        names = list(self.lines)
        after = names.index(host) + 1 if host in self.lines else 0
        others = [name for name in names[after:] + names[:after] if name != host]
        if others:
            self._put(others[0], wire.Keep(term=self.term, kept=left), wire.Keep.__name__)

    def _stop(self, stop: cmd.StopJob) -> None:
        self.stopped = stop
        for line in self.lines.values():
            line.put(self.farewell(stop))
        self.when_stopped(stop)

    def farewell(self, stop: cmd.StopJob) -> wire.Order:
        return wire.Order(term=self.term, command=stop)

    def _order(self, host: HostId | None, command: cmd.ToAgent) -> None:
        self._put(host, wire.Order(term=self.term, command=command), type(command).__name__)

    def _put(self, host: HostId | None, message: wire.ToHost, kind: str) -> None:
        line = None if host is None else self.lines.get(host)
        if line is None:
            self.dropped[kind] += 1
        else:
            line.put(message)
