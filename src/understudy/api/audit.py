"""Who asked for what, and what became of it: one line per request in `ledger/audit.jsonl`."""

import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from understudy.api.job import JobDoor
from understudy.ledger.records import AuditRecord
from understudy.ledger.writing import JsonLines


class Audit:
    """When it cannot be written, that is said once; an operator must be able to act when a disk is full."""

    def __init__(self, file: Path, say: Callable[[str], None]) -> None:
        self._file, self._say = file, say
        self._lines: JsonLines | None = None
        self._said = False

    def write(
        self,
        door: JobDoor,
        *,
        who: str,
        action: str,
        outcome: str,
        reason: str,
        asked: Mapping[str, object],
        key: str = "",
        dry_run: bool = False,
    ) -> None:
        machine = door.machine()
        record = AuditRecord(
            at=door.now(),
            time=datetime.datetime.fromtimestamp(time.time()).astimezone().isoformat(timespec="milliseconds"),
            who=who,
            action=action,
            outcome=outcome,
            reason=reason,
            asked=dict(asked),
            generation=None if machine is None else machine.generation,
            key=key,
            dry_run=dry_run,
        )
        try:
            if self._lines is None:  # a job that nobody asks for anything has no such file
                self._lines = JsonLines(self._file)
            self._lines.append(record)
        except OSError as error:
            if not self._said:
                self._said = True
                self._say(f"what is asked over HTTP is missing from the audit from now on: {error.strerror}")

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
