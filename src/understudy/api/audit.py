"""Which caller asked for what, and what became of it: one line per request in `ledger/audit.jsonl`."""

import datetime
import time
from collections.abc import Mapping

from understudy.api.job import JobInterface
from understudy.ledger.records import AuditRecord
from understudy.ledger.writing import RecordLog


class Audit:
    """`log` never waits for a disk: an operator must be able to act when one is full."""

    def __init__(self, log: RecordLog) -> None:
        self._log = log

    def write(
        self,
        interface: JobInterface,
        *,
        caller: str,
        action: str,
        outcome: str,
        reason: str,
        asked: Mapping[str, object],
        key: str = "",
        dry_run: bool = False,
    ) -> None:
        machine = interface.machine()
        record = AuditRecord(
            at=interface.now(),
            time=datetime.datetime.fromtimestamp(time.time()).astimezone().isoformat(timespec="milliseconds"),
            who=caller,
            action=action,
            outcome=outcome,
            reason=reason,
            asked=dict(asked),
            generation=None if machine is None else machine.generation,
            key=key,
            dry_run=dry_run,
        )
        self._log.append(record)
