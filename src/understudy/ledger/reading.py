"""Reads a run's folder back into values, and refuses a ledger that contradicts itself.

Knows: files, lines, which records may stand beside each other. Does not know: other runs (that is `comparing`).
Called by `understudy verify`, `understudy explain`, tests and claims. Linear in the number of lines.

What is tolerated, and what is not:

- A process may die in the middle of a line. So the last line of a file may be torn; it is left out and counted. A
  damaged line anywhere else is no accident of dying, and is an error.
- Several members may record the same (step, rank): a predecessor that committed it and died, and a successor that
  inherited it. All that they say must agree.
- One member commits a step once. Twice means that an optimizer step was applied twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from understudy.errors import LedgerError
from understudy.ledger.records import DecisionRecord, RecoveryRecord, RunInfo, StepRecord
from understudy.protocol.commands import DecisionKind

FIELDS = ("batch", "parameters", "optimizer", "rng")
"""The digests of a step record, in the order in which differences are reported."""

_Place = tuple[int, int]

_steps = msgspec.json.Decoder(StepRecord)
_decisions: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(DecisionRecord | RecoveryRecord)
_info = msgspec.json.Decoder(RunInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as its ledger tells it. `steps` holds one merged record per (step, rank)."""

    path: Path
    info: RunInfo
    steps: dict[_Place, StepRecord]
    decisions: tuple[DecisionRecord, ...]
    recoveries: tuple[RecoveryRecord, ...]
    torn: tuple[str, ...]  # files whose last line was cut off by the death of their writer
    repeated: int  # records that agreed with an earlier one for the same (step, rank)

    @property
    def step_count(self) -> int:
        """Steps 0..n-1, up to the newest that any rank recorded."""
        return 1 + max((step for step, _ in self.steps), default=-1)

    @property
    def ranks(self) -> range:
        return range(self.info.world_size)

    @property
    def was_degraded(self) -> bool:
        """Were steps done without some of the ranks?"""
        return any(record.sharing is not None for record in self.steps.values())

    def missing(self) -> Iterator[_Place]:
        """Places without a record, by step and rank."""
        for step in range(self.step_count):
            for rank in self.ranks:
                if (step, rank) not in self.steps:
                    yield step, rank

    def steps_with(self, field: str) -> set[int]:
        """The steps at which this run took the digest `field`."""
        return {step for (step, _), record in self.steps.items() if getattr(record, field) is not None}


@dataclass(frozen=True, slots=True)
class _Line:
    """A record and where it was read, for messages."""

    record: StepRecord
    where: str

    def __str__(self) -> str:
        how = "inherited" if self.record.inherited else "committed"
        return f"{how} by {self.record.member} in generation {self.record.generation} ({self.where})"


def read_run(path: str | Path) -> Run:
    """Read the folder of one run. Raises LedgerError, which names the file and the line."""
    folder = Path(path)
    info = _read_info(folder)
    torn: list[str] = []
    decisions: list[DecisionRecord] = []
    recoveries: list[RecoveryRecord] = []
    for _, record in _records(folder / "ledger" / "decisions.jsonl", _decisions, torn):
        (decisions if isinstance(record, DecisionRecord) else recoveries).append(record)
    steps, repeated = _read_steps(folder, info.world_size, _rewinds(decisions), torn)
    return Run(
        path=folder,
        info=info,
        steps=steps,
        decisions=tuple(decisions),
        recoveries=tuple(recoveries),
        torn=tuple(torn),
        repeated=repeated,
    )


def _read_info(folder: Path) -> RunInfo:
    file = folder / "run.json"
    try:
        return _info.decode(file.read_bytes())
    except FileNotFoundError:
        raise LedgerError(f"{folder} is not the folder of a run: it has no run.json") from None
    except (OSError, msgspec.DecodeError) as error:
        raise LedgerError(f"{file} cannot be read: {error}") from None


def _rewinds(decisions: list[DecisionRecord]) -> list[tuple[int, int]]:
    """(generation, step): what older generations recorded of this step and later ones is void, and was done again."""
    found = (record for record in decisions if record.kind == DecisionKind.REWIND.value)
    return [(record.generation, record.step) for record in found if record.step is not None]


def _read_steps(
    folder: Path, world_size: int, rewinds: list[tuple[int, int]], torn: list[str]
) -> tuple[dict[_Place, StepRecord], int]:
    merged: dict[_Place, StepRecord] = {}
    lines: dict[_Place, list[_Line]] = {}
    repeated = 0
    for file in sorted((folder / "ledger").glob("steps-*.jsonl")):
        for number, record in _records(file, _steps, torn):
            line = _Line(record, f"{file.name} line {number}")
            place = (record.step, record.rank)
            if not (0 <= record.rank < world_size and record.step >= 0):
                raise LedgerError(
                    f"{file} line {number}: step {record.step} of rank {record.rank} is outside this run "
                    f"of {world_size} ranks"
                )
            if any(record.generation < generation and record.step >= step for generation, step in rewinds):
                continue
            earlier = lines.setdefault(place, [])
            for other in earlier:
                _check_together(folder, other, line)
            merged[place] = _merge(merged[place], record) if earlier else record
            repeated += bool(earlier)
            earlier.append(line)
    return merged, repeated


def _check_together(folder: Path, first: _Line, second: _Line) -> None:
    """Two records of one (step, rank) may stand beside each other, or LedgerError names both."""
    one, two = first.record, second.record
    place = f"{folder}: step {one.step} of rank {one.rank}"
    if one.member == two.member and not (one.inherited or two.inherited):
        raise LedgerError(f"{place} was committed twice by the same member: {first}, and {second}")
    for field in FIELDS:
        left, right = getattr(one, field), getattr(two, field)
        if left is not None and right is not None and left != right:
            raise LedgerError(f"{place} has two different values of {field}: {left}, {first}, and {right}, {second}")


def _merge(kept: StepRecord, other: StepRecord) -> StepRecord:
    """The record of who committed it, with every digest that either has."""
    base, extra = (other, kept) if kept.inherited and not other.inherited else (kept, other)
    found = {field: getattr(extra, field) for field in FIELDS if getattr(base, field) is None}
    return msgspec.structs.replace(base, **found) if found else base


def _records(file: Path, decoder: "msgspec.json.Decoder[Any]", torn: list[str]) -> Iterator[tuple[int, Any]]:
    """Line numbers and records of a file that may not exist (yet)."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{file} cannot be read: {error}") from None
    lines = data.split(b"\n")
    last = lines.pop()  # empty unless the writer died in the middle of a line
    for number, line in enumerate(lines, start=1):
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            raise LedgerError(f"{file} line {number} is damaged: {error}") from None
    if not last:
        return
    try:
        yield len(lines) + 1, decoder.decode(last)
    except msgspec.DecodeError:
        torn.append(file.name)
