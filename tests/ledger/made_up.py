"""Ledgers that never happened, written the way real ones are."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from understudy.ledger.records import DecisionRecord, RecoveryRecord, RunInfo, StepRecord, TransferRecord
from understudy.ledger.writing import line_of, mark_of, steps_file


class WrittenAtOnce:
    """A file for tests that look into it right away: there is nobody in the background."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(data)


def info(world_size: int = 2, digest_every: int = 1) -> RunInfo:
    return RunInfo(
        job="made-up",
        command=("train.py", "--steps", "3"),
        world_size=world_size,
        spares=1,
        digest_every=digest_every,
        started="2026-01-02T03:04:05+00:00",
        versions={"torch": "2.15.0"},
    )


def committed(step: int, rank: int, member: str | None = None, **changes: object) -> StepRecord:
    """A record whose digests are functions of the place, as in a deterministic run."""
    record = StepRecord(
        step=step,
        rank=rank,
        member=member or f"m-{rank}",
        generation=1,
        at=100.0 + step,
        batch=f"b{step}.{rank}",
        parameters=f"p{step}",
        optimizer=f"o{step}",
        rng=f"r{step}.{rank}",
    )
    return msgspec.structs.replace(record, **changes)


def bare(step: int, rank: int) -> StepRecord:
    """Only the batch is known."""
    return committed(step, rank, parameters=None, optimizer=None, rng=None)


def all_places(steps: int = 3, world_size: int = 2) -> list[StepRecord]:
    return [committed(step, rank) for step in range(steps) for rank in range(world_size)]


def write_run(
    folder: Path,
    records: Sequence[StepRecord],
    decisions: Sequence[DecisionRecord | RecoveryRecord] = (),
    run_info: RunInfo | None = None,
    incomplete: Sequence[str] = (),
) -> Path:
    """`incomplete`: writers whose records could not all be written."""
    ledger = folder / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_bytes(msgspec.json.encode(run_info or info()))
    for record in records:
        with steps_file(ledger, record.member).open("ab") as file:
            file.write(line_of(record))
    with (ledger / "decisions.jsonl").open("ab") as file:
        file.write(b"".join(map(line_of, decisions)))
    for writer in incomplete:
        mark_of(ledger, writer).touch()
    return folder


def swap_decisions() -> list[DecisionRecord | RecoveryRecord]:
    """Rank 1 dies in step 2 and m-2 takes over; then the pool is refilled and the job ends."""
    lost = "rank 1 (member m-1) was lost: killed by signal 9"
    retry = "retry: rank 0 had not arrived at the fence of step 2, so no rank passed it"
    return [
        DecisionRecord(at=100.0, generation=1, kind="start", reason="the job begins"),
        DecisionRecord(at=102.0, generation=2, kind="swap", reason=lost, rank=1, member="m-1"),
        DecisionRecord(at=102.1, generation=2, kind="verdict", reason=retry, step=2),
        DecisionRecord(at=102.25, generation=2, kind="resumed", reason=lost, step=2),
        RecoveryRecord(
            at=102.25,
            opened_at=102.0,
            first_generation=2,
            generation=2,
            step=2,
            reasons=(lost,),
            verdict="retry",
            swaps=((1, "m-1", "m-2"),),
            phases={"detect": 0.001, "stop": 0.02, "rehearse": 0.1, "regroup": 0.03, "transfer": 0.08, "resume": 0.019},
            transfers=(TransferRecord(receiver=1, given={0: 12_345_678}, seconds=0.05, checked=9, from_memory=True),),
        ),
        DecisionRecord(at=103.25, generation=2, kind="refill", reason="the pool is below its size", member="m-3"),
        DecisionRecord(
            at=104.0, generation=2, kind="refuse", reason="PositionReported from m-1, which is gone", member="m-1"
        ),
        DecisionRecord(at=105.0, generation=2, kind="finish", reason="every rank has committed its last step"),
        DecisionRecord(at=105.5, generation=2, kind="stop", reason="every rank ended its script"),
    ]
