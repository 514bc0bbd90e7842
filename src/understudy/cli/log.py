"""What a long-lived process says: a line with its time for people, or one JSON document per line for machines.

`code` says what kind of line it is, in words that stay the same when the text is put better: the kind of a decision, or
note, listening, leading, deposed, recovered, end. Documented in docs/hosts.md.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from understudy.ledger.records import DecisionRecord, RecoveryRecord

FORMATS = ("text", "json")
_WARNINGS = frozenset(
    {"deposed", "alarm", "corrupt", "degrade", "kill", "no refill", "restart", "step down", "swap", "wait", "warn"}
)


class Log:
    """`run`: which run of the job it is, as soon as that is known. Implements `coordinator.port.Journal`."""

    def __init__(
        self, who: str, job: str, form: str, *, stream: TextIO | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        self.run: Callable[[], str] = lambda: ""
        self._who, self._job, self._form = who, job, form
        self._stream, self._wall = stream, wall

    def say(self, text: str) -> None:
        self.tell("note", text)

    def warn(self, text: str) -> None:
        """What the operator has to mend; it is no decision of the job."""
        self.tell("warn", text)

    def tell(self, code: str, text: str, *, failed: bool = False, **details: object) -> None:
        """`details`: for machines only."""
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = "error" if failed else "warning" if code in _WARNINGS else "info"
        line = f"{at} {self._who}: {text}"
        if self._form == "json":
            said = {"time": at, "level": level, "code": code, "who": self._who, "job": self._job, "run": self.run()}
            line = json.dumps({**said, "text": text, **details})
        print(line, file=self._stream or sys.stderr, flush=True)

    def append(self, record: DecisionRecord | RecoveryRecord) -> None:
        """One line of every decision and recovery."""
        if isinstance(record, DecisionRecord):
            text = f"generation {record.generation}: {record.kind}: {record.reason}"
            self.tell(
                record.kind,
                text,
                generation=record.generation,
                rank=record.rank,
                member=record.member,
                step=record.step,
            )
        else:
            text = f"recovered in {record.phases.get('total', 0.0):.3f} s, at step {record.step}"
            self.tell("recovered", text, generation=record.generation, step=record.step, seconds=record.phases)
