"""Proves from the ledger that every sample of every step was used once, also while ranks were absent.

Knows: what a whole world would have worked on, and what the ranks of each step say they did. Does not know: files
(`reading`), equal state (`comparing`; a run that was degraded is never bit-identical to one that was not).
Linear in the number of records.

A step of a whole world is covered when every rank has a record of it. In a step that was done without some ranks every
share must have been worked on once: as a whole by the ranks whose share it is, or in pieces by others, from its first
sample to its last without gap or overlap. Ranks of one share (tensor parallel) work on the same samples, and must say
the same.

A member that died after its gradients were in and before it wrote that down leaves no record. Its successor's says
`inherited`; or the next step is done without its rank, and without those that were benched with it; or its host was
lost with its last records. All gradients were in when the step was committed, so what no other rank took was taken by
the one that was lost. Such steps are counted (`inferred`), as they rest on the plan and not on what a rank wrote. In
the last step of all there is nothing to infer it from.

With a run of the same job that was never degraded to hold against, every batch must also be the same one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from understudy.ledger.records import Sharing, StepRecord, Taken
from understudy.ledger.run import Run
from understudy.protocol.sharing_out import SharingOut


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a step's samples were not used exactly once, as far as the ledger tells."""

    step: int
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """`degraded`: steps that were done without some ranks. `compared`: batches held against the other run.
    `unwritten`: steps of which nothing can be shown, because records of them could not be written."""

    steps: int
    degraded: tuple[int, ...]
    inferred: tuple[int, ...] = ()
    unwritten: tuple[int, ...] = ()
    compared: int = 0
    flaws: tuple[Flaw, ...] = ()

    @property
    def holds(self) -> bool:
        return self.steps > 0 and not self.flaws and not self.unwritten

    def sentence(self) -> str:
        if not self.steps:
            return "no step is on record"
        if self.flaws:
            return f"not every sample was used once: {self.flaws[0]} ({len(self.flaws)} steps in all)"
        if self.unwritten:
            others = f"every sample of the other {self.steps - len(self.unwritten)} steps was used once"
            return f"of {len(self.unwritten)} steps nothing can be shown: the ledger is incomplete; {others}"
        without = f", {len(self.degraded)} of them without some ranks" if self.degraded else ""
        inferred = f" (in {len(self.inferred)} a lost member must have used the rest)" if self.inferred else ""
        compared = f"; {self.compared} batches are those of the other run" if self.compared else ""
        return f"every sample of {self.steps} steps was used once{without}{inferred}{compared}"


def prove(run: Run, whole: Run | None = None) -> Proof:
    """`whole`: a run of the same job whose batches are the ones that should have been used."""
    by_step: dict[int, dict[int, StepRecord]] = defaultdict(dict)
    for (step, rank), record in run.steps.items():
        by_step[step][rank] = record
    flaws: list[Flaw] = []
    degraded: list[int] = []
    inferred: list[int] = []
    unwritten: list[int] = []
    compared = 0
    for step in range(run.began, run.step_count):
        records = by_step[step]
        told = _told(records)
        gone = _absent_in(_told(by_step[step + 1]), run.info.world_size)
        if told:
            degraded.append(step)
            lost = {rank for rank in run.ranks if (step, rank) in run.lost_with_host}
            flaw, guessed = _degraded_step(records, told, told[0].shares == run.info.world_size, gone | lost)
        else:
            missing = [rank for rank in run.ranks if rank not in records]
            unexplained = [rank for rank in missing if rank not in gone and (step, rank) not in run.lost_with_host]
            flaw, guessed = f"no member recorded rank {unexplained[0]}" if unexplained else None, bool(missing)
        if flaw is not None and any(run.lacks_steps_of(rank) for rank in run.ranks if rank not in records):
            unwritten.append(step)
            continue
        if guessed:
            inferred.append(step)
        if flaw is None and whole is not None:
            batches = _batches(records, told, run.info.world_size)
            known = {rank: other.batch for rank in batches if (other := whole.steps.get((step, rank))) and other.batch}
            compared += len(known)
            differing = sorted(rank for rank, batch in known.items() if batch != batches[rank])
            if differing:
                flaw = f"the batch of rank {differing[0]} was another one than in the other run"
        if flaw is not None:
            flaws.append(Flaw(step, flaw))
    return Proof(
        steps=run.step_count - run.began,
        degraded=tuple(degraded),
        inferred=tuple(inferred),
        unwritten=tuple(unwritten),
        compared=compared,
        flaws=tuple(flaws),
    )


def _told(records: dict[int, StepRecord]) -> list[Sharing]:
    return [record.sharing for record in records.values() if record.sharing is not None]


def _absent_in(told: Sequence[Sharing], world_size: int) -> set[int]:
    """The ranks that a step was done without, where every rank has its own share."""
    return set(told[0].absent) if told and told[0].shares == world_size else set()


def _degraded_step(
    records: dict[int, StepRecord], told: Sequence[Sharing], share_is_rank: bool, gone: Collection[int]
) -> tuple[str | None, bool]:
    """The flaw, if there is one; and whether something had to be inferred from the plan. `gone`: ranks that the next
    step was done without."""
    shares, absent = told[0].shares, told[0].absent
    if any((sharing.shares, sharing.absent) != (shares, absent) for sharing in told):
        return "ranks do not agree on which ranks were absent", False
    taken_by: dict[int, tuple[Taken, ...]] = {}
    for sharing in told:
        if sharing.share in absent:
            return f"share {sharing.share} was called absent, and worked on", False
        if taken_by.setdefault(sharing.share, sharing.taken) != sharing.taken:
            return f"ranks of share {sharing.share} did not take the same samples", False
    silent = [share for share in SharingOut(shares, absent).present() if share not in taken_by]
    heirs = [rank for rank, record in records.items() if record.inherited and record.sharing is None]
    for share in silent:
        if share not in gone and (not heirs or (share_is_rank and share not in heirs)):
            return f"no rank worked on share {share}", False
    pieces = [piece for taken in taken_by.values() for piece in taken]
    return _uncovered(absent, pieces, gaps_explained=bool(silent)), bool(silent)


def _uncovered(absent: Iterable[int], taken: Iterable[Taken], gaps_explained: bool) -> str | None:
    by_share: dict[int, list[Taken]] = defaultdict(list)
    for piece in taken:
        if piece.start < piece.stop:
            by_share[piece.share].append(piece)
    for share in sorted(by_share.keys() | set(absent)):
        if share not in absent:
            return f"samples of share {share}, which was not absent, were used twice"
        if len({piece.batch for piece in by_share[share] if piece.batch is not None}) > 1:
            return f"pieces of share {share} were not all cut from the same batch"
        reached = 0
        pieces = sorted(by_share[share], key=lambda piece: piece.start)
        for piece in pieces:
            if piece.start < reached or (piece.start > reached and not gaps_explained):
                how = "left out" if piece.start > reached else "used twice"
                between = sorted((reached, piece.start))
                return f"samples {between[0]} to {between[1] - 1} of share {share} were {how}"
            reached = piece.stop
        if any(piece.size != pieces[0].size for piece in pieces):
            return f"ranks do not agree on how many samples share {share} has"
        if not gaps_explained and (not pieces or reached != pieces[0].size):
            return f"samples of share {share} were left out after the first {reached}"
    return None


def _batches(records: dict[int, StepRecord], told: Sequence[Sharing], world_size: int) -> dict[int, str]:
    """Rank -> digest of the samples of its batch, also of a rank that was absent: a rank that took a piece says which
    batch it was cut from. (A share that several ranks have is not counted as one of them.)"""
    found = {rank: record.batch for rank, record in records.items()}
    if told and told[0].shares == world_size:
        found |= {taken.share: taken.batch for sharing in told for taken in sharing.taken}
    return {rank: batch for rank, batch in found.items() if batch is not None}
