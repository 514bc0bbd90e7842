"""Writes this member's part of the ledger: one line per step that it committed or inherited."""

import time
from array import array
from pathlib import Path

from understudy.foundation.ids import Generation
from understudy.ledger.records import StepRecord
from understudy.ledger.writing import JsonLines
from understudy.state.digests import digest_rng, digest_text
from understudy.state.manifest import Protected
from understudy.training.data import StepData


class StepLedger:
    """Knows how often digests are wanted. One system call per step."""

    def __init__(self, run_dir: str, member: str, rank: int, world_size: int, digest_every: int) -> None:
        self._lines = JsonLines(Path(run_dir) / "ledger" / f"steps-{member}.jsonl")
        self._member, self._rank = member, rank
        self._digest_every = digest_every
        self._timings: dict[str, float] = {}
        self._data: StepData | None = None
        self._share = (rank, world_size)

    def use(self, data: StepData | None, share: tuple[int, int]) -> None:
        """`share`: which part of each batch this rank works on."""
        self._data, self._share = data, share

    def time(self, phase: str, seconds: float) -> None:
        self._timings[phase] = seconds

    def timings(self) -> dict[str, float]:
        return self._timings

    def committed(self, protected: Protected, generation: Generation, step: int, attempt: int) -> None:
        rng = digest_rng() if self._wants_digest(step) else None
        self._write(protected, generation, step, attempt, rng, inherited=False)

    def inherited(self, protected: Protected, generation: Generation, step: int) -> None:
        """State that was received is on record too; the random state of that step was the dead member's."""
        if step >= 0:
            self._write(protected, generation, step, 0, None, inherited=True)

    def _wants_digest(self, step: int) -> bool:
        return self._digest_every > 0 and (step + 1) % self._digest_every == 0

    def _write(
        self, protected: Protected, generation: Generation, step: int, attempt: int, rng: str | None, inherited: bool
    ) -> None:
        digest = self._wants_digest(step)
        self._lines.append(
            StepRecord(
                step=step,
                rank=self._rank,
                member=self._member,
                generation=generation,
                at=time.monotonic(),
                attempt=attempt,
                batch=self._batch(step),
                parameters=protected.digest_parameters() if digest else None,
                optimizer=protected.digest_optimizer() if digest else None,
                rng=rng,
                inherited=inherited,
            )
        )

    def _batch(self, step: int) -> str | None:
        if self._data is None:
            return None
        ids = self._data.sample_ids(step, *self._share)
        return digest_text(array("q", ids).tobytes())[:16] if ids else None
