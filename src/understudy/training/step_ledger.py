"""Writes this member's part of the ledger: one line per step that it committed or inherited."""

import time
from collections.abc import Callable
from typing import Protocol

from understudy.foundation.ids import Generation
from understudy.ledger.records import Sharing, StepRecord
from understudy.state.digests import digest_rng
from understudy.state.protected_state import Protected
from understudy.state.state_digests import BY_XXH3, StateDigests
from understudy.training.data.step_data import StepData, digest_of_samples


class Lines(Protocol):
    """Takes records; never fails, and never waits for a disk."""

    def append(self, record: StepRecord, /) -> None: ...


class StepLedger:
    """Knows how often digests are wanted, and which. One system call per step."""

    def __init__(
        self,
        lines: Lines,
        member: str,
        rank: int,
        world_size: int,
        digest_every: int,
        note: Callable[[str], None] = lambda _: None,
        digests: StateDigests = BY_XXH3,
    ) -> None:
        self._lines, self._note, self._by = lines, note, digests
        self._member, self._rank = member, rank
        self._digest_every = digest_every
        self._data: StepData | None = None
        self._share = (rank, world_size)
        self._held_back: StepRecord | None = None
        self._complained = False
        self.is_undecided = False
        """The device has still to decide about the step that was committed last: its record waits for `saved`."""
        self.rank_local: frozenset[str] = frozenset()  # paths of buffers that replicas do not share

    def use(self, data: StepData | None, share: tuple[int, int]) -> None:
        """`share`: which part of each batch this rank works on."""
        self._data, self._share = data, share

    def committed(
        self,
        protected: Protected,
        generation: Generation,
        step: int,
        attempt: int,
        sharing: Sharing | None = None,
        until_saved: bool = False,
    ) -> None:
        """`sharing`: what this rank worked on besides its own batch, while others were absent. `until_saved`: the step
        counts only once its state is saved; then `saved` is called."""
        rng = digest_rng() if self.wants_digest(step) else None
        record = self._record(protected, generation, step, attempt, rng, sharing=sharing)
        if until_saved or self.is_undecided:
            self._held_back = record
        else:
            self._lines.append(record)

    def saved(self) -> None:
        if self._held_back is not None:
            self._lines.append(self._held_back)
        self._held_back = None

    def forget_after(self, step: int) -> None:
        """All ranks have gone back to the state before `step`."""
        if self._held_back is not None and self._held_back.step >= step:
            self._held_back = None

    def inherited(self, protected: Protected, generation: Generation, step: int) -> None:
        """State that was received is on record too. The random state of that step was the dead member's, and so were
        buffers that no other rank has."""
        if step >= 0:
            self._lines.append(self._record(protected, generation, step, 0, None, inherited=True))

    def wants_digest(self, step: int) -> bool:
        return self._digest_every > 0 and (step + 1) % self._digest_every == 0

    def _record(
        self,
        protected: Protected,
        generation: Generation,
        step: int,
        attempt: int,
        rng: str | None,
        inherited: bool = False,
        sharing: Sharing | None = None,
    ) -> StepRecord:
        digests = self._digests(protected, inherited) if self.wants_digest(step) else {}
        return StepRecord(
            step=step,
            rank=self._rank,
            member=self._member,
            generation=generation,
            at=time.monotonic(),
            attempt=attempt,
            batch=self._batch(step),
            rng=rng,
            inherited=inherited,
            sharing=sharing,
            **digests,
        )

    def _digests(self, protected: Protected, inherited: bool) -> dict[str, str | None]:
        """None of them when the script's own save function fails: it writes to a disk, which may be full."""
        try:
            return {
                "parameters": protected.digest_parameters(self.rank_local, self._by),
                "optimizer": protected.digest_optimizer(self._by),
                "buffers": None if inherited else protected.digest_buffers(self.rank_local, self._by),
                "extras": None if inherited else protected.digest_extras(self._by),
            }
        except (OSError, RuntimeError) as error:
            if protected.save is None:
                raise
            if not self._complained:
                self._complained = True
                self._note(f"digests are missing from the ledger, because save= failed: {error}. Training goes on")
            return {}

    def _batch(self, step: int) -> str | None:
        return None if self._data is None else digest_of_samples(self._data, step, *self._share)
