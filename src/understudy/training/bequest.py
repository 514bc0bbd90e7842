"""What a rank leaves to whoever will replace it: kept when its world is established, and true for as long as it lives.

The file lies beside the progress pages and outlives the process.
"""

import os
from pathlib import Path

import msgspec

from understudy.groups.prompter import Script


class Bequest(msgspec.Struct, frozen=True, kw_only=True):
    """`script`: what the rank was told in its setup. `holdings`: what it holds (`Protected.holdings`). `twin_key`:
    equal for ranks that hold the same bytes of everything."""

    script: Script = {}
    holdings: dict[str, int] = {}
    twin_key: str | None = None


class BequestFile:
    """Of one rank of one world. A world that starts over has files of its own."""

    def __init__(self, folder: str, founded_in: int, rank: int) -> None:
        self._path = Path(folder) / f"bequest-{founded_in}-{rank}"

    def write(self, bequest: Bequest) -> None:
        unfinished = self._path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.msgpack.encode(bequest))
        unfinished.replace(self._path)

    def read(self) -> Bequest:
        """Empty when there is none: the rank was lost before its world was established."""
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=Bequest)
        except FileNotFoundError:
            return Bequest()
