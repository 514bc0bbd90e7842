"""Reads a run's folder back into a value (`run.Run`).

Knows: files, lines, which records may stand beside each other. Does not know: other runs (that is `comparing`).
Called by the commands verify, explain, doctor and status, by tests and claims. Linear in the number of lines.

What is damage, and what is only told:

- A process may die in the middle of a line. So the last line of a file may be torn; it is left out and counted.
- A disk may be full. Where records are missing stands a gap record, and the line before it may be cut off; or, when not
  even that could be written, an empty file `incomplete-<writer>` lies beside. The run is then read with what is there.
- A damaged line anywhere else is neither, and is an error that names the file and the line.
- Several members may record the same (step, rank): a predecessor that committed it and died, and a successor that
  inherited it. Where they do not say the same, and where one member commits a step twice, that is a finding about the
  run (`Conflict`) and no damage to its ledger.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from understudy.errors import LedgerError
from understudy.ledger.records import DecisionRecord, GapRecord, RecoveryRecord, RunInfo, StepRecord
from understudy.ledger.run import AUDIT, DECISIONS, FIELDS, Conflict, Place, Shortfall
from understudy.ledger.run import Run as Run
from understudy.ledger.writing import MARK
from understudy.protocol.commands import DecisionKind

_steps = msgspec.json.Decoder(StepRecord)
_decisions: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(DecisionRecord | RecoveryRecord)
_gaps = msgspec.json.Decoder(GapRecord)
_info = msgspec.json.Decoder(RunInfo)


@dataclass(slots=True)
class _Marks:
    """What files say of themselves. `torn`: writers and files. `short`: the writers that lack records, and why."""

    torn: list[tuple[str, str]] = field(default_factory=list)
    short: dict[str, str] = field(default_factory=dict)

    def gap(self, writer: str, gap: GapRecord) -> None:
        self.short[writer] = self.short.get(writer) or gap.why


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
    marks = _Marks(short={file.name.removeprefix(MARK): "" for file in (folder / "ledger").glob(f"{MARK}*")})
    decisions: list[DecisionRecord] = []
    recoveries: list[RecoveryRecord] = []
    for _, record in _records(folder / "ledger" / "decisions.jsonl", DECISIONS, _decisions, marks):
        (decisions if isinstance(record, DecisionRecord) else recoveries).append(record)
    told = _Steps(info.world_size, _rewinds(decisions))
    for file in sorted((folder / "ledger").glob("steps-*.jsonl")):
        member = file.name.removeprefix("steps-").removesuffix(".jsonl")
        for number, record in _records(file, member, _steps, marks):
            told.take(record, file, number)
    lacks_steps = not marks.short.keys() <= {DECISIONS, AUDIT}
    began, from_checkpoint = _beginning(decisions, told.merged.values(), lacks_steps)
    return Run(
        path=folder,
        info=info,
        steps=told.merged,
        decisions=tuple(decisions),
        recoveries=tuple(recoveries),
        torn=tuple(file for writer, file in marks.torn if writer not in marks.short),
        repeated=told.repeated,
        conflicts=tuple(told.conflicts),
        shortfalls=tuple(
            Shortfall(writer=writer, ranks=frozenset(told.ranks_of.get(writer, ())), why=why)
            for writer, why in sorted(marks.short.items())
        ),
        lost_with_host=frozenset(_lost_with_host(decisions, recoveries, told.merged)),
        began=began,
        from_checkpoint=from_checkpoint,
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


def _beginning(decisions: list[DecisionRecord], steps: Iterable[StepRecord], lacks_steps: bool) -> tuple[int, bool]:
    """The first step of the run, and whether a decision says so. A state that was loaded is on record as inherited,
    under the step before it. A world that was founded again later says so by the same kind of decision. Where records
    are missing, the first ones may be among them."""
    first = min((record.step + record.inherited for record in steps), default=0)
    resumed = [record.step for record in decisions if record.kind == DecisionKind.CHECKPOINT.value]
    earlier = [step for step in resumed if step is not None and step <= first]
    if earlier:
        return max(earlier), True
    return (0 if lacks_steps else first), False


def _lost_with_host(
    decisions: list[DecisionRecord], recoveries: list[RecoveryRecord], steps: dict[Place, StepRecord]
) -> Iterator[Place]:
    """A worker's records wait on its host for a moment (`spool`). When a host is lost with them, the steps between the
    last one that came from there and the one at which the world went on were committed, and have no record."""
    end = 1 + max((step for step, _ in steps), default=-1)
    for lost in decisions:
        if lost.kind != DecisionKind.HOST.value or lost.member is None or lost.rank is None:
            continue
        went_on = next((record.step for record in recoveries if record.generation > lost.generation), end)
        for step in range(went_on - 1, -1, -1):
            record = steps.get((step, lost.rank))
            if record is None:
                yield step, lost.rank
            elif record.member == lost.member or record.generation <= lost.generation:
                break


class _Steps:
    """Puts the records of all members together, one for each place."""

    def __init__(self, world_size: int, rewinds: list[tuple[int, int]]) -> None:
        self.merged: dict[Place, StepRecord] = {}
        self.conflicts: list[Conflict] = []
        self.repeated = 0
        self.ranks_of: dict[str, set[int]] = {}  # by member
        self._world_size, self._rewinds = world_size, rewinds
        self._lines: dict[Place, list[_Line]] = {}

    def take(self, record: StepRecord, file: Path, number: int) -> None:
        if not (0 <= record.rank < self._world_size and record.step >= 0):
            raise LedgerError(
                f"{file} line {number}: step {record.step} of rank {record.rank} is outside this run "
                f"of {self._world_size} ranks"
            )
        self.ranks_of.setdefault(record.member, set()).add(record.rank)
        if any(record.generation < generation and record.step >= step for generation, step in self._rewinds):
            return
        place, line = (record.step, record.rank), _Line(record, f"{file.name} line {number}")
        earlier = self._lines.setdefault(place, [])
        found = [conflict for other in earlier for conflict in _conflicts(other, line)]
        self.conflicts += found
        self.merged[place] = _merge(self.merged[place], record) if earlier else record
        self.repeated += bool(earlier) and not found
        earlier.append(line)


def _conflicts(first: _Line, second: _Line) -> Iterator[Conflict]:
    """What two records of one (step, rank) cannot both say."""
    one, two = first.record, second.record

    def conflict(what: str, left: str, right: str) -> Conflict:
        return Conflict(
            step=one.step,
            rank=one.rank,
            field=what,
            first=left,
            first_by=str(first),
            second=right,
            second_by=str(second),
        )

    if one.member == two.member and not (one.inherited or two.inherited):
        yield conflict("commit", "", "")
    for name in FIELDS:
        left, right = getattr(one, name), getattr(two, name)
        if left is not None and right is not None and left != right:
            yield conflict(name, left, right)


def _merge(kept: StepRecord, other: StepRecord) -> StepRecord:
    """The record of the member that committed it, the last time that one did, with every digest that either has."""
    newer = other.generation > kept.generation if kept.inherited == other.inherited else kept.inherited
    base, extra = (other, kept) if newer else (kept, other)
    found = {name: getattr(extra, name) for name in FIELDS if getattr(base, name) is None}
    return msgspec.structs.replace(base, **found) if found else base


def _records(file: Path, writer: str, decoder: "msgspec.json.Decoder[Any]", marks: _Marks) -> Iterator[tuple[int, Any]]:
    """Line numbers and records of a file that may not exist (yet)."""
    try:
        data = file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{file} cannot be read: {error}") from None
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        if is_last and not line:
            return
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError as error:
            if (gap := _gap(line)) is not None:
                marks.gap(writer, gap)
            elif is_last:
                marks.torn.append((writer, file.name))  # its writer died in the middle of a line
            elif _gap(lines[number]) is None:
                raise LedgerError(f"{file} line {number} is damaged: {error}") from None


def _gap(line: bytes) -> GapRecord | None:
    try:
        return _gaps.decode(line)
    except msgspec.DecodeError:
        return None
