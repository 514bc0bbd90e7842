"""Reads what `understudy status`, `/metrics` and the ledger tell of a running job, in a row, as one `Moment`."""

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from understudy.ledger.records import RecoveryRecord, StepRecord
from understudy_testkit.faults import agreement
from understudy_testkit.faults.agreement import Ledger, Metered, Moment, Told
from understudy_testkit.faults.watching import decided_so_far

Status = Callable[[Path], dict[str, Any]]
"""What `understudy status --json` prints for the folder of a run."""


@dataclass
class Views:
    """`lies`: every disagreement, with the number of its moment. `recalled`: for each API, how many recoveries of its
    predecessors its process counts in status and not in its own metrics."""

    run_dir: Path
    status: Status
    moments: list[Moment] = field(default_factory=list)
    lies: list[str] = field(default_factory=list)
    recalled: dict[str, int] = field(default_factory=dict)

    def look(self) -> Moment:
        """One moment, compared with itself. What only the finished ledger can tell comes with `judge`."""
        began, written = time.monotonic(), self._written()
        before = self._told()
        metered = metered_at(f"{before.api}/metrics") if before.leads else None
        after = self._told()
        moment = Moment(
            began=began, written=written, before=before, metered=metered, after=after, ended=time.monotonic()
        )
        self.moments.append(moment)
        self._note(agreement.disagreements(moment, self._recalled(moment)))
        return moment

    def judge(self, world: int) -> Ledger:
        """The run is over, and all of its ledger is written."""
        steps = (one for file in self.run_dir.glob("ledger/steps-*.jsonl") for one in _step_records(file))
        recoveries = [one for one in decided_so_far(self.run_dir) if isinstance(one, RecoveryRecord)]
        ledger = Ledger(steps, recoveries)
        for number, moment in enumerate(self.moments, 1):
            self._note(agreement.against_the_ledger(moment, ledger, world), number)
        return ledger

    def _note(self, found: Iterator[str], number: int | None = None) -> None:
        place = len(self.moments) if number is None else number
        self.lies += [f"moment {place}: {lie}" for lie in found]

    def _told(self) -> Told:
        document = self.status(self.run_dir)
        self._note(agreement.within(document), len(self.moments) + 1)
        return agreement.from_status(document)

    def _written(self) -> int:
        return sum(isinstance(record, RecoveryRecord) for record in decided_so_far(self.run_dir))

    def _recalled(self, moment: Moment) -> int:
        """The first look at a process tells it, and it must stay so. What its metrics count, it has counted itself."""
        if moment.metered is None or not moment.still:
            return self.recalled.get(moment.before.api, 0)
        first = moment.before.recoveries - moment.metered.recoveries
        return self.recalled.setdefault(moment.before.api, first)


def metered_at(url: str) -> Metered | None:
    """None: no server answers there."""
    try:
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return agreement.from_metrics(answer.read().decode())
    except OSError:
        return None


def _step_records(file: Path) -> Iterator[StepRecord]:
    """A line may be cut off by the death of its writer, and a gap record may say so."""
    decoder = msgspec.json.Decoder(StepRecord)
    for line in file.read_bytes().split(b"\n"):
        with contextlib.suppress(msgspec.DecodeError):
            yield decoder.decode(line)
