"""What a rank leaves to whoever will replace it: kept when its world is established, and true for as long as it lives.

All of it lies in a file beside the progress pages, which outlives the process. Where there are other hosts a part of it
goes to the coordinator as well, and outlives the host.
"""

import os
from pathlib import Path

import msgspec

from understudy.groups.prompter import Line, Script
from understudy.state.rank_local import Shown
from understudy.training.likeness import Likeness

_TRAVELS = 64 * 1024
"""Bytes of a script that go to the coordinator, which has one of every rank."""


class Bequest(msgspec.Struct, frozen=True, kw_only=True):
    """`script`: what the rank was told in its setup. `holdings`: what it holds (`Protected.holdings`). `shown`:
    what it has shown to all ranks, its twin key above all. `likeness`: what its setup has made."""

    script: Script = {}
    holdings: dict[str, int] = {}
    shown: Shown | None = None
    likeness: Likeness | None = None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(content: bytes) -> "Bequest":
        """Empty when there is none: the rank was lost before its world was established."""
        return msgspec.msgpack.decode(content, type=Bequest) if content else Bequest()

    def for_elsewhere(self) -> "Bequest":
        """Without the longest messages: what steers a setup is short."""
        return msgspec.structs.replace(self, script=shorten(self.script, _TRAVELS))


def shorten(script: Script, most: int) -> Script:
    """The same script, with messages of `most` bytes in all. The longest are left out first."""
    lengths = sorted(
        len(part) for lines in script.values() for line in lines for part in line.heard if part is not None
    )
    too_long = None
    for length in lengths:
        most -= length
        if most < 0:
            too_long = length
            break
    if too_long is None:
        return script

    def shorter(line: Line) -> Line:
        kept = [part if part is not None and len(part) < too_long else None for part in line.heard]
        return Line(line.operation, kept)

    return {group: [shorter(line) for line in lines] for group, lines in script.items()}


class BequestFile:
    """Of one rank of one world. A world that starts over has files of its own."""

    def __init__(self, folder: str, founded_in: int, rank: int) -> None:
        self._path = Path(folder) / f"bequest-{founded_in}-{rank}"
        self._own: Bequest | None = None
        self.trouble: str | None = None  # why it could not be written

    def write(self, bequest: Bequest) -> None:
        """Never raises: without the file only its short form is left, which goes to the coordinator."""
        self._own = bequest
        unfinished = self._path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_bytes(bequest.encode())
            unfinished.replace(self._path)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            unfinished.unlink(missing_ok=True)

    def read(self) -> Bequest:
        """What was written here; else what the former holder of the rank left. Empty when the rank never was on this
        host, or was lost before its world was established."""
        if self._own is not None:
            return self._own
        try:
            return Bequest.decode(self._path.read_bytes())
        except FileNotFoundError:
            return Bequest()
