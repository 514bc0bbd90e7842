"""Where the output of each rank goes: torchrun's --redirects, --tee, --log-dir and --local-ranks-filter.

By default a process writes straight to our own stdout and stderr. A stream that goes to a file comes through a pipe and
is written in the background (`files.background`), so that a disk that is full or slow costs lines of a log and nothing
else. Every stream of a spare comes through a pipe when anything was asked for, because its rank is not known yet when
it starts.
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

from understudy.errors import SettingsError
from understudy.files.background import BackgroundFile, BackgroundFiles


class Std(enum.IntFlag):
    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


_READ_BYTES, _READS, _MOST_READS = 1 << 16, 16, 256

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

    def __init__(self, plan: LogPlan, stream: Std, rank: int | None, console: Console, files: BackgroundFiles) -> None:
        self._plan, self._stream = plan, stream
        self._relay: Relay | None = None
        self.descriptor: int | None = None
        if plan.inherits:
            return
        route = None if rank is None else plan.route(rank, stream)
        if route is None or route.file is not None or (route.console and plan.relayed):
            read_end, self.descriptor = os.pipe()
            self._relay = Relay(read_end, stream, console, self._open_file(files))
            if route is not None:
                self._relay.go_to(route)
        elif not route.console:
            self.descriptor = subprocess.DEVNULL

    def _open_file(self, files: BackgroundFiles) -> Callable[[Path], BackgroundFile]:
        return lambda path: files.open(path, gap=_missing_here, place=self._plan.folder)

    def started(self) -> None:
        if self.descriptor is not None and self.descriptor >= 0:
            os.close(self.descriptor)

    def assigned(self, rank: int) -> None:
        if self._relay is not None:
            self._relay.go_to(self._plan.route(rank, self._stream))

    def drain(self) -> None:
        if self._relay is not None:
            self._relay.drain()

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()


def _missing_here(why: str, _lost: int = 0) -> bytes:
    """Stands in a log where output is missing."""
    return f"\nunderstudy: output is missing here: {why}\n".encode()


class Relay:
    """Reads a pipe and hands on what it reads; keeps it while the rank is not known yet."""

    KEPT = 1 << 20  # bytes kept for a spare that has no rank yet; older ones are shown as they are

    def __init__(
        self, read_end: int, stream: Std, console: Console, open_file: Callable[[Path], BackgroundFile]
    ) -> None:
        os.set_blocking(read_end, False)
        self._read_end: int | None = read_end
        self._stream, self._console, self._open_file = stream, console, open_file
        self._route: Route | None = None
        self._file: BackgroundFile | None = None
        self._kept = bytearray()  # all of it without a route; the unfinished line with one
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(read_end, self._readable)

    def go_to(self, route: Route) -> None:
        if self._route is not None:
            return
        self._route = route
        if route.file is not None:
            self._file = self._open_file(route.file)
        kept, self._kept = bytes(self._kept), bytearray()
        if kept:
            self._take(kept)

    def _readable(self) -> None:
        """Take some of it: a process that never stops writing must not keep the loop from everything else."""
        for _ in range(_READS):
            if not self._read():
                return

    def drain(self) -> None:
        """Take all that is there, without waiting. What is written after the end of the process is not followed."""
        for _ in range(_MOST_READS):
            if not self._read():
                return

    def _read(self) -> bool:
        """False when nothing is there."""
        if self._read_end is None:
            return False
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        if self._route is None:
            self._kept += data
            if len(self._kept) > self.KEPT:
                self._console(self._stream, bytes(self._kept))
                self._kept.clear()
            return
        if self._file is not None:
            self._file.write(data)
        if self._route.console:
            whole, newline, rest = (bytes(self._kept) + data).rpartition(b"\n")
            self._kept = bytearray(rest)
            if newline:
                self._show(whole + newline)

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
