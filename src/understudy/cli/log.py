"""What coordinators and agents say: a line with its time for people, or one JSON document per line for machines.

`code` says what kind of line it is, in words that stay the same when the text is put better: the kind of a decision, or
one of those in docs/hosts.md, where they are documented.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from understudy.ledger.records import DecisionRecord, RecoveryRecord

FORMATS = ("text", "json")
_WARNINGS = frozenset(
    {
        *("alarm", "corrupt", "degrade", "kill", "no refill", "restart", "step down", "swap", "wait", "warn"),
        *("deposed", "leaving", "no coordinator"),
    }
)


class Log:
    """`name`: of the program that speaks, `who` in JSON. `host`: where it is said. `run`: which run of the job it is,
    as soon as that is known. Implements `coordinator.effects.Journal` and `agent.coordinator_client.Tell`."""

    def __init__(
        self,
        name: str,
        job: str,
        form: str,
        *,
        host: str,
        stream: TextIO | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.run: Callable[[], str] = lambda: ""
        self._name, self._job, self._form, self._host = name, job, form, host
        self._stream, self._wall = stream, wall

    def say(self, text: str) -> None:
        self.tell("note", text)

    def warn(self, text: str) -> None:
        """What the operator has to mend; it is no decision of the job."""
        self.tell("warn", text)

    def tell(self, code: str, text: str, /, **details: object) -> None:
        """`details`: for machines only. An `exit_code` other than 0 makes it an error."""
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = "error" if details.get("exit_code") else "warning" if code in _WARNINGS else "info"
        line = f"{at} {self._name} on {self._host}: {text}"
        if self._form == "json":
            said = {"time": at, "level": level, "code": code, "who": self._name, "host": self._host, "job": self._job}
            line = json.dumps({**said, "run": self.run(), "text": text, **details})
        with contextlib.suppress(OSError):  # its reader is gone; the job goes on
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
                reason=record.code,
            )
        else:
            text = f"recovered in {record.phases.get('total', 0.0):.3f} s, at step {record.step}"
            self.tell("recovered", text, generation=record.generation, step=record.step, seconds=record.phases)
