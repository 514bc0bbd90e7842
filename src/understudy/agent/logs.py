"""Where the output of each rank goes: torchrun's --redirects, --tee, --log-dir and --local-ranks-filter.

By default a process writes straight to our own stdout and stderr. A redirected stream is a file that the process
writes itself; a teed one comes through a pipe, and so does every stream of a spare when anything was asked for, because
its rank is not known yet when it starts.
"""

import asyncio
import enum
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import BinaryIO

from understudy.errors import SettingsError


class Std(enum.IntFlag):
    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


NAMES = {Std.OUT: "stdout", Std.ERR: "stderr"}
Console = Callable[[Std, bytes], None]
"""Shows bytes that end in a newline (or are the last ones) to the person at the terminal."""


def parse_std(flag: str, text: str) -> Std | dict[int, Std]:
    """`3` for all ranks, or `0:3,1:2` rank by rank."""
    if re.fullmatch(r"[0123]", text):
        return Std(int(text))
    if re.fullmatch(r"(\d+:[0123],)*\d+:[0123]", text):
        pairs = (part.split(":") for part in text.split(","))
        return {int(rank): Std(int(value)) for rank, value in pairs}
    raise SettingsError(f"{flag} {text}: give 0, 1 (stdout), 2 (stderr), 3 (both) or a list such as 0:3,1:2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where one stream of one rank goes: to a file, to the console behind a prefix, to both or to neither."""

    file: Path | None
    console: bool
    prefix: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    folder: Path  # <log-dir>/<run id>/attempt_0
    redirects: Std | Mapping[int, Std] = Std.NONE
    tee: Std | Mapping[int, Std] = Std.NONE
    only: frozenset[int] = frozenset()  # --local-ranks-filter; empty is all
    role: str = "default"
    template: str = ""  # --log-line-prefix-template
    relayed: bool = False  # a live line is on the terminal: whole lines only, and through us

    @property
    def inherits(self) -> bool:
        """Nothing was asked for: every process writes to our own streams."""
        return not (self.redirects or self.tee or self.only or self.relayed)

    def route(self, rank: int, stream: Std) -> Route:
        teed = bool(_for_rank(self.tee, rank) & stream)
        redirected = teed or bool(_for_rank(self.redirects, rank) & stream)
        shown = (teed or not redirected) and (not self.only or rank in self.only)
        file = self.folder / str(rank) / f"{NAMES[stream]}.log" if redirected else None
        return Route(file=file, console=shown, prefix=self._prefix(rank) if teed else b"")

    def _prefix(self, rank: int) -> bytes:
        if not self.template:
            return f"[{self.role}{rank}]:".encode()
        values = {"role_name": self.role, "rank": rank, "local_rank": rank, "hostname": socket.gethostname()}
        return Template(self.template).safe_substitute(values).encode()


def _for_rank(value: Std | Mapping[int, Std], rank: int) -> Std:
    return value if isinstance(value, Std) else value.get(rank, Std.NONE)


class Outlet:
    """One stream of one process. `descriptor` is what its Popen gets; it is closed here once the process has it."""

    def __init__(self, plan: LogPlan, stream: Std, rank: int | None, console: Console) -> None:
        self._plan, self._stream, self._console = plan, stream, console
        self._relay: Relay | None = None
        self.descriptor: int | None = None
        if plan.inherits:
            return
        route = None if rank is None else plan.route(rank, stream)
        if route is None or (route.console and (route.file or plan.relayed)):
            read_end, self.descriptor = os.pipe()
            self._relay = Relay(read_end, stream, console)
            if route is not None:
                self._relay.go_to(route)
        elif route.file is not None:
            self.descriptor = _open(route.file).detach_descriptor()
        elif not route.console:
            self.descriptor = subprocess.DEVNULL

    def started(self) -> None:
        if self.descriptor is not None and self.descriptor >= 0:
            os.close(self.descriptor)

    def assigned(self, rank: int) -> None:
        if self._relay is not None:
            self._relay.go_to(self._plan.route(rank, self._stream))

    def drain(self) -> None:
        if self._relay is not None:
            self._relay.read()

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()


class _LogFile:
    """Appends, so that a replaced rank goes on in the file of its predecessor."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def detach_descriptor(self) -> int:
        descriptor = os.dup(self._file.fileno())
        self._file.close()
        return descriptor


def _open(path: Path) -> _LogFile:
    return _LogFile(path)


class Relay:
    """Reads a pipe and hands on what it reads; keeps it while the rank is not known yet."""

    KEPT = 1 << 20  # bytes kept for a spare that has no rank yet; older ones are shown as they are

    def __init__(self, read_end: int, stream: Std, console: Console) -> None:
        os.set_blocking(read_end, False)
        self._read_end: int | None = read_end
        self._stream, self._console = stream, console
        self._route: Route | None = None
        self._file: _LogFile | None = None
        self._kept = bytearray()  # all of it without a route; the unfinished line with one
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(read_end, self.read)

    def go_to(self, route: Route) -> None:
        if self._route is not None:
            return
        self._route = route
        if route.file is not None:
            self._file = _open(route.file)
        kept, self._kept = bytes(self._kept), bytearray()
        self._take(kept)

    def read(self) -> None:
        """Take what is there, without waiting."""
        while self._read_end is not None:
            try:
                data = os.read(self._read_end, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        if self._route is None:
            self._kept += data
            if len(self._kept) > self.KEPT:
                self._console(self._stream, bytes(self._kept))
                self._kept.clear()
            return
        self._keep(data)
        if self._route.console:
            whole, newline, rest = (bytes(self._kept) + data).rpartition(b"\n")
            self._kept = bytearray(rest)
            if newline:
                self._show(whole + newline)

    def _keep(self, data: bytes) -> None:
        """Into the file. A full disk costs lines of a log, never a rank."""
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self._file = None
            name = self._route.file if self._route is not None else "?"
            self._console(Std.ERR, f"understudy: {name} is given up: {error.strerror}\n".encode())

    def _show(self, text: bytes) -> None:
        prefix = self._route.prefix if self._route is not None else b""
        if prefix:
            text = b"".join(prefix + line for line in text.splitlines(keepends=True))
        self._console(self._stream, text)

    def close(self) -> None:
        if self._read_end is None:
            return
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        self._read_end = None
        if self._kept:
            self._show(bytes(self._kept) + b"\n")
            self._kept.clear()
        if self._file is not None:
            self._file.close()
