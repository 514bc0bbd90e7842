"""How records become lines of a ledger file, and how a ledger says that lines are missing from it.

Knows: the form of a line, and of the marks. Does not know: what writes the bytes, and when. Workers write theirs into a
spool (`spool`), which their agent moves to the run's folder; the launcher and coordinators write in the background
(`files.background`). No record is flushed to the disk: that would cost every step.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from understudy.files.background import BackgroundFiles
from understudy.files.private import FILE_MODE, make_private_folder, write_private
from understudy.ledger.records import GapRecord, RunInfo

_encoder = msgspec.json.Encoder()
MARK = "incomplete-"
WHOLE_RUN = "run"
"""Stands in a mark for all writers."""


class Sink(Protocol):
    """Takes bytes without waiting and without failing."""

    def write(self, data: bytes, /) -> None: ...


class RecordLog:
    """One ledger file: each record is one line."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def append(self, record: msgspec.Struct) -> None:
        self._sink.write(line_of(record))

    @staticmethod
    def open(
        files: BackgroundFiles, ledger: Path, name: str, remade: Callable[[], object] = lambda: None
    ) -> "RecordLog":
        """`<ledger>/<name>.jsonl`, written in the background."""
        path, mark = ledger / f"{name}.jsonl", mark_of(ledger, name)
        return RecordLog(files.open(path, gap=gap_line, whole_lines=True, mark=mark, remade=remade))


def line_of(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record) + b"\n"


def gap_line(why: str, lost: int = 0) -> bytes:
    """Stands where records are missing."""
    return line_of(GapRecord(at=time.monotonic(), why=why, lost=lost))


def write_run_info(run_dir: Path, info: RunInfo) -> None:
    make_private_folder(run_dir / "ledger")
    write_private(run_dir / "run.json", msgspec.json.format(msgspec.json.encode(info)) + b"\n")


def restore_run_info(run_dir: Path, info: RunInfo) -> None:
    """The folder of a run that goes on was removed. Without this file what is written there cannot be read,
    and a writer that has ended by now cannot say that its records were in it."""
    if not (run_dir / "run.json").exists():
        write_run_info(run_dir, info)
        mark_of(run_dir / "ledger", WHOLE_RUN).touch(FILE_MODE)


def steps_file(ledger: Path, member: str) -> Path:
    return ledger / f"steps-{member}.jsonl"


def mark_of(ledger: Path, writer: str) -> Path:
    """An empty file that says: not all that `writer` (a member, or the name of a file) wrote is in the ledger. It can
    often be made when nothing can be written any more."""
    return ledger / f"{MARK}{writer}"
