"""What a run's ledger knows about how long things take. Times of one member only are compared with each other: members
may be on hosts with clocks of their own."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from understudy.ledger.narrative import duration
from understudy.ledger.records import RecoveryRecord, TransferRecord
from understudy.ledger.run import Run

_FIRST_STEPS = 2  # of a member; compilation and allocation make them long
_RECENT = 50  # steps from which the deadline of a hang is learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """Seconds, bytes, bytes per second. None: the ledger does not say."""

    typical_step: float | None = None
    slow_step: float | None = None  # 19 of 20 steps are done by then
    longest_gap: float | None = None  # between two commits of a member: a step, and the script's code around it
    state_bytes: int | None = None  # the largest transfer
    speed: float | None = None  # of the largest transfer that went over the process group
    detect: float | None = None
    stop: float | None = None  # the longest
    preparation: float | None = None  # the longest
    regroup: float | None = None  # the longest
    forming: float | None = None  # the longest: from the verdict until all had resumed
    recoveries: int = 0  # unplanned
    recovery: float | None = None  # the median of those


def history_of(run: Run) -> RunHistory:
    gaps = sorted(gap for rank in run.ranks for gap in gaps_of(run, rank))
    unplanned = [record for record in run.recoveries if not record.planned]
    transfers = [transfer for record in run.recoveries for transfer in record.transfers if transfer.received]
    sent = [transfer for transfer in transfers if not transfer.from_memory and transfer.seconds > 0]
    largest = max(sent, key=lambda transfer: transfer.received, default=None)
    detections = [record.phases["detect"] for record in unplanned if "detect" in record.phases]
    return RunHistory(
        typical_step=max((statistics.median(recent) for recent in _recent(run)), default=None),
        slow_step=gaps[math.ceil(0.95 * len(gaps)) - 1] if gaps else None,
        longest_gap=gaps[-1] if gaps else None,
        state_bytes=max((transfer.received for transfer in transfers), default=None),
        speed=None if largest is None else _speed(largest),
        detect=statistics.median(detections) if detections else None,
        stop=_longest(unplanned, "stop"),
        preparation=_longest(run.recoveries, "rehearse"),
        regroup=_longest(run.recoveries, "regroup"),
        forming=_longest(run.recoveries, "resume"),
        recoveries=len(unplanned),
        recovery=statistics.median(map(duration, unplanned)) if unplanned else None,
    )


def gaps_of(run: Run, rank: int) -> Iterator[float]:
    """Seconds between two commits in a row by the same member, without its first ones."""
    member, seen = "", 0
    for step in range(1, run.step_count):
        former, record = run.steps.get((step - 1, rank)), run.steps.get((step, rank))
        if former is None or record is None:
            continue
        if record.member != member:
            member, seen = record.member, 0
        seen += 1
        together = former.member == record.member and former.generation == record.generation
        if together and not former.inherited and seen > _FIRST_STEPS:
            yield max(0.0, record.at - former.at)


def _recent(run: Run) -> Iterator[list[float]]:
    for rank in run.ranks:
        gaps = [*gaps_of(run, rank)][-_RECENT:]
        if gaps:
            yield gaps


def _speed(transfer: TransferRecord) -> float:
    return transfer.received / transfer.seconds


def _longest(records: "list[RecoveryRecord] | tuple[RecoveryRecord, ...]", phase: str) -> float | None:
    return max((record.phases[phase] for record in records if phase in record.phases), default=None)
