"""What every worker of every arm records: its birth, each committed step, its end. One line of JSON each.

Also a page of shared memory with the process and the last step of each rank, through which the runner finds its
victims. Times are CLOCK_MONOTONIC, which all processes of one machine share. No torch here: the runner reads this too.
"""

import json
import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SLOT = struct.Struct("<qq")


class Board:
    """One slot per rank: the process that holds it, and the last step that it has committed (-1: none)."""

    def __init__(self, folder: Path, ranks: int) -> None:
        descriptor = os.open(folder / "board", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _SLOT.size * ranks)
            self._page = mmap.mmap(descriptor, _SLOT.size * ranks)
        finally:
            os.close(descriptor)

    def show(self, rank: int, pid: int, step: int) -> None:
        _SLOT.pack_into(self._page, rank * _SLOT.size, pid, step)

    def look(self, rank: int) -> tuple[int, int]:
        pid, step = _SLOT.unpack_from(self._page, rank * _SLOT.size)
        return pid, step


class Recorder:
    """Of one worker that holds `rank`. Made when the rank is known; every line is in the file when a call returns."""

    def __init__(self, folder: str | Path, rank: int, ranks: int) -> None:
        self._rank, self._pid = rank, os.getpid()
        self._board = Board(Path(folder), ranks)
        (Path(folder) / "events").mkdir(exist_ok=True)
        path = Path(folder) / "events" / f"{rank}-{self._pid}-{time.monotonic_ns()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._board.show(rank, self._pid, -1)
        self._write({"kind": "born", "pid": self._pid})

    def step(self, step: int, loss: float, samples: Sequence[int], replicas: int) -> None:
        """A step is committed. `samples`: whose gradients of this rank went into it (none if they were thrown away).
        `replicas`: how many ranks contributed to it, this one included."""
        self._write({"kind": "step", "step": step, "loss": loss, "samples": list(samples), "replicas": replicas})
        self._board.show(self._rank, self._pid, step)

    def noticed(self, what: str) -> None:
        """The approach has told this worker that something is wrong elsewhere."""
        self._write({"kind": "noticed", "what": what[:200]})

    def end(self, weights: str) -> None:
        self._write({"kind": "end", "weights": weights})

    def _write(self, line: dict[str, Any]) -> None:
        line = {"at": time.monotonic(), "rank": self._rank, **line}
        os.write(self._file, json.dumps(line).encode() + b"\n")
