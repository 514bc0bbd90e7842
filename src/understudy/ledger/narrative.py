"""Tells a run's decisions and recoveries to a person, in the order in which they matter at 3 a.m.

Knows: how records belong together. Does not know: terminals, files. Called by `understudy explain`.

What contradicts itself or is missing, one block per recovery, then refills, kills and refusals, then how the run ended,
then the summary.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from understudy.ledger.records import DecisionRecord, RecoveryRecord, TransferRecord
from understudy.ledger.run import Run
from understudy.protocol.commands import DecisionKind

_OPENING = tuple(
    kind.value for kind in (DecisionKind.SWAP, DecisionKind.ALARM, DecisionKind.MOVE, DecisionKind.RESTART)
)
_CONFLICTS_SHOWN = 10
_RUNGS = tuple(kind.value for kind in (DecisionKind.DEGRADE, DecisionKind.RESTART, DecisionKind.STEP_DOWN))
_SECTIONS = (
    ("warnings", (DecisionKind.WARN,)),
    ("began with", (DecisionKind.CHECKPOINT,)),
    ("devices", (DecisionKind.DEVICE,)),
    ("without replicas", (DecisionKind.DEGRADE,)),
    ("plans", (DecisionKind.PLAN, DecisionKind.NO_MOVE)),
    ("start overs", (DecisionKind.START_OVER,)),
    ("restarts from memory", (DecisionKind.RESTART,)),
    ("refills", (DecisionKind.REFILL, DecisionKind.NO_REFILL)),
    ("twins that differ", (DecisionKind.CORRUPT,)),
    ("went back", (DecisionKind.REWIND,)),
    ("bad state on probation", (DecisionKind.STEP_DOWN,)),
    ("kills", (DecisionKind.KILL,)),
    ("refusals", (DecisionKind.REFUSE,)),
    ("end", (DecisionKind.FINISH, DecisionKind.STOP)),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A headline and (label, text) lines under it."""

    title: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds are None where there was nothing to measure."""

    steps: int
    recoveries: int
    median_recovery: float | None
    downtime: float
    start_overs: int
    moves: int = 0

    def sentence(self) -> str:
        parts = [counted(self.steps, "step") + " committed by every rank", counted(self.recoveries, "recovery")]
        if self.median_recovery is not None:
            parts.append(f"median recovery {milliseconds(self.median_recovery)}")
        if self.moves:
            parts.append(counted(self.moves, "planned move"))
        if self.moves or self.recoveries:
            parts.append(f"total downtime {milliseconds(self.downtime)}")
        parts.append(counted(self.start_overs, "start over"))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Narrative:
    heading: Block
    recoveries: tuple[Block, ...]
    sections: tuple[Block, ...]
    summary: Summary


def tell(run: Run) -> Narrative:
    """The narrative of a run. Times are seconds since its first record."""
    first_decision = min((record.at for record in run.decisions), default=0.0)
    origin = min([first_decision, *(record.opened_at for record in run.recoveries)]) if run.decisions else 0.0
    blocks = [_recovery(number, record, run, origin) for number, record in enumerate(run.recoveries, start=1)]
    unfinished = _unfinished(run, origin)
    if unfinished is not None:
        blocks.append(unfinished)
    sections = [_section(title, kinds, run, origin) for title, kinds in _SECTIONS]
    return Narrative(
        heading=_heading(run),
        recoveries=tuple(blocks),
        sections=tuple(section for section in sections if section.lines),
        summary=summarize(run),
    )


def summarize(run: Run) -> Summary:
    durations = [duration(record) for record in run.recoveries if not record.planned]
    full = max(0, run.step_count - run.began) - len({step for step, _ in run.missing()})
    return Summary(
        steps=full,
        recoveries=len(durations),
        median_recovery=statistics.median(durations) if durations else None,
        downtime=sum(duration(record) for record in run.recoveries),
        start_overs=sum(record.kind == DecisionKind.START_OVER.value for record in run.decisions),
        moves=sum(record.planned for record in run.recoveries),
    )


def duration(record: RecoveryRecord) -> float:
    """Seconds of one recovery, from the first sign of the loss where that is known."""
    return record.phases.get("total", record.at - record.opened_at)


# -- blocks -----------------------------------------------------------------------------------------------------------


def _heading(run: Run) -> Block:
    info = run.info
    digests = f"every {info.digest_every} steps" if info.digest_every > 1 else "every step"
    lines = [
        ("command", " ".join(info.command)),
        ("world", f"{counted(info.world_size, 'rank')}, {counted(info.spares, 'spare')}"),
        ("started", info.started),
        ("digests", digests if info.digest_every else "none"),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(info.versions.items())) or "unknown"),
    ]
    if run.torn:
        lines.append(("torn", f"last line cut off by the death of its writer: {', '.join(run.torn)}"))
    lines += [("incomplete", text) for text in _shortfalls(run)]
    lines += [("contradicts", str(conflict)) for conflict in run.conflicts[:_CONFLICTS_SHOWN]]
    if len(run.conflicts) > _CONFLICTS_SHOWN:
        lines.append(("contradicts", f"and {len(run.conflicts) - _CONFLICTS_SHOWN} more places"))
    return Block(f"job {info.job}", tuple(lines))


def _shortfalls(run: Run) -> Iterator[str]:
    """What could not be written, and which steps are missing because of it, as far as later ones show that."""
    for shortfall in run.shortfalls:
        yield f"not everything could be written by {shortfall}"
    if not run.lacks_steps:
        return
    if missing := [*run.missing()]:
        steps, ranks = [step for step, _ in missing], sorted({rank for _, rank in missing})
        span = f"between steps {min(steps)} and {max(steps)}"
        yield f"{counted(len(missing), 'record')} missing {span}, of rank {', '.join(map(str, ranks))}"
    yield f"the newest step on record is {run.step_count - 1}; later ones may be missing too"


def _recovery(number: int, record: RecoveryRecord, run: Run, origin: float) -> Block:
    generations = record.generation - record.first_generation + 1
    again = f", opened {generations} times" if generations > 1 else ""
    lines = [("why", reason) for reason in record.reasons]
    rungs = [
        decision
        for decision in run.decisions
        if decision.kind in _RUNGS and record.first_generation <= decision.generation <= record.generation
    ]
    for decision in rungs:
        if decision.reason not in record.reasons:
            lines += [("rung", text) for text in decision.lines]
    lines += [("verdict", text) for text in _verdict(record, run)]
    lines += [("took over", _swap(*swap)) for swap in record.swaps]
    if not record.swaps:
        degraded = any(decision.kind == DecisionKind.DEGRADE.value for decision in rungs)
        others = "the world goes on with fewer ranks" if degraded else "every rank kept its member"
        lines.append(("took over", f"no member: {others}"))
    phases = [f"{name} {milliseconds(seconds)}" for name, seconds in record.phases.items() if name != "total"]
    lines.append(("phases", ", ".join([*phases, f"in all {milliseconds(duration(record))}"])))
    lines += [("received", _transfer(transfer)) for transfer in record.transfers]
    lines.append(("went on", f"at step {record.step}, in generation {record.generation}"))
    kind = "planned move" if record.planned else "recovery"
    return Block(f"{kind} {number}, {_since(record.opened_at, origin)}{again}", tuple(lines))


def _verdict(record: RecoveryRecord, run: Run) -> list[str]:
    """The verdict and its reason, which the decision of the last generation holds in full."""
    for decision in reversed(run.decisions):
        judged = decision.kind in (DecisionKind.VERDICT.value, DecisionKind.REWIND.value)
        if judged and decision.generation == record.generation:
            return decision.lines
    return [record.verdict]


def _transfer(transfer: TransferRecord) -> str:
    donors = ", ".join(
        f"{size(given)} from {'its former process' if rank == transfer.receiver else f'rank {rank}'}"
        for rank, given in sorted(transfer.given.items())
    )
    way = "read from memory" if transfer.from_memory else "over the process group"
    speed = f"{size(int(transfer.received / transfer.seconds))}/s" if transfer.seconds > 0 else "at once"
    text = f"rank {transfer.receiver}: {donors}; {way}, {speed}, {transfer.checked} digests compared"
    if transfer.digest:
        text += f", in all {transfer.digest}"
    if transfer.distrusted:
        ranks = ", ".join(str(rank) for rank in transfer.distrusted)
        text += f"; rank {ranks} held other bytes than its twins and was not used"
    return text


def _swap(rank: int, old: str | None, new: str) -> str:
    return f"rank {rank}: {new} in place of {old}" if old else f"rank {rank}: {new}"


def _unfinished(run: Run, origin: float) -> Block | None:
    """A recovery that was opened and never resumed: the job stopped in it, or is still in it."""
    closing = [record.generation for record in run.recoveries]
    closing += [record.generation for record in run.decisions if record.kind == DecisionKind.START_OVER.value]
    closed = max(closing, default=-1)
    opened = [record for record in run.decisions if record.kind in _OPENING and record.generation > closed]
    if not opened:
        return None
    lines = [("why", text) for record in opened for text in record.lines]
    lines.append(("went on", "not recorded: the run ended, or is still recovering"))
    return Block(f"recovery without an end, {_since(opened[0].at, origin)}", tuple(lines))


def _section(title: str, kinds: tuple[DecisionKind, ...], run: Run, origin: float) -> Block:
    wanted = {kind.value for kind in kinds}
    chosen = [record for record in run.decisions if record.kind in wanted]
    return Block(title, tuple((_since(record.at, origin), text) for record in chosen for text in _decision(record)))


def _decision(record: DecisionRecord) -> list[str]:
    subject = [f"rank {record.rank}"] if record.rank is not None else []
    subject += [record.member] if record.member is not None else []
    first, *more = record.lines
    return [f"{record.kind}{' ' + ', '.join(subject) if subject else ''}: {first}", *more]


# -- small words ------------------------------------------------------------------------------------------------------


def _since(at: float, origin: float) -> str:
    return f"+{at - origin:.3f} s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def size(count: int) -> str:
    """Bytes for a person, and exactly where they are few."""
    if count < 10_000:
        return f"{count} bytes"
    if count < 1_000_000:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB"


def counted(number: int, noun: str) -> str:
    """`1 recovery`, `2 recoveries`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
