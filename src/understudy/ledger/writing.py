"""Writes records to a ledger file: one JSON object per line, one write per record.

There is no buffer in this process, so a record that was appended survives the death of its writer. What the death of
the machine takes is another matter: nothing is flushed to the disk, because that would cost every step.
"""

import os
from pathlib import Path
from types import TracebackType

import msgspec

_encoder = msgspec.json.Encoder()


class JsonLines:
    """One append-only file with one writer."""

    def __init__(self, path: str | Path) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, record: msgspec.Struct) -> None:
        line = _encoder.encode(record) + b"\n"
        written = os.write(self._file, line)
        while written < len(line):  # a full disk may take a part; then the next write says why
            written += os.write(self._file, line[written:])

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
