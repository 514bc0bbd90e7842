"""One run, as its ledger tells it: a value that `reading` makes, and that comparing, proving and telling work on.

Knows: what was recorded, what contradicts itself, and which missing records the ledger itself explains. Does not know:
files, other runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from understudy.ledger.records import DecisionRecord, RecoveryRecord, RunInfo, StepRecord
from understudy.protocol.commands import DecisionKind

FIELDS = ("batch", "parameters", "optimizer", "rng", "buffers", "extras")
"""The digests of a step record, in the order in which differences are reported."""

OPTIONAL = frozenset({"buffers", "extras"})
"""Digests of what a model may not have at all: a run without them is compared in full."""

DECISIONS, AUDIT = "decisions", "audit"
"""The files of a ledger that hold no step records."""

Place = tuple[int, int]
"""Step and rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two records of one place that cannot both be true. `first_by`, `second_by`: their writers, and where. `field`:
    "commit" when one member committed the step twice."""

    step: int
    rank: int
    field: str
    first: str
    first_by: str
    second: str
    second_by: str

    def __str__(self) -> str:
        place = f"step {self.step}, rank {self.rank}"
        if self.field == "commit":
            return f"{place}: the same member committed it twice, {self.first_by}, and {self.second_by}"
        both = f"{self.first} {self.first_by}, and {self.second} {self.second_by}"
        return f"{place}: two values of {self.field}, {both}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Not all that `writer` wrote is in the ledger: a member's steps, or the file of that name. `ranks`: those of which
    records may be missing; empty where that is not known. `why`: as far as it was written down."""

    writer: str
    ranks: frozenset[int] = frozenset()
    why: str = ""

    def __str__(self) -> str:
        return f"{self.writer} ({self.why})" if self.why else self.writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`steps` holds one merged record per (step, rank). `began`: the first step that it trained; later than 0 when it
    began with a durable checkpoint (`from_checkpoint`: the ledger says so, and not only its first record)."""

    path: Path
    info: RunInfo
    steps: dict[Place, StepRecord]
    decisions: tuple[DecisionRecord, ...]
    recoveries: tuple[RecoveryRecord, ...]
    torn: tuple[str, ...]  # files whose last line was cut off by the death of their writer
    repeated: int  # records that agreed with an earlier one for the same (step, rank)
    conflicts: tuple[Conflict, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    lost_with_host: frozenset[Place] = frozenset()  # missing: the host was lost before they came from there
    began: int = 0
    from_checkpoint: bool = False

    @property
    def step_count(self) -> int:
        """One more than the newest step that any rank recorded."""
        return 1 + max((step for step, _ in self.steps), default=-1)

    @property
    def ranks(self) -> range:
        return range(self.info.world_size)

    @property
    def was_degraded(self) -> bool:
        """Were steps done without some of the ranks?"""
        return any(record.sharing is not None for record in self.steps.values())

    def missing(self) -> Iterator[Place]:
        """Places without a record since the run began, by step and rank."""
        for step in range(self.began, self.step_count):
            for rank in self.ranks:
                if (step, rank) not in self.steps:
                    yield step, rank

    def steps_with(self, field: str) -> set[int]:
        """The steps at which this run took the digest `field`."""
        return {step for (step, _), record in self.steps.items() if getattr(record, field) is not None}

    # -- what the ledger says of itself -------------------------------------------------------------------------------

    @property
    def lacks_decisions(self) -> bool:
        """Then a decision to go back may be missing too, and records that contradict each other prove nothing."""
        return any(shortfall.writer == DECISIONS for shortfall in self.shortfalls)

    @property
    def lacks_steps(self) -> bool:
        return any(shortfall.writer not in (DECISIONS, AUDIT) for shortfall in self.shortfalls)

    @property
    def ended(self) -> bool:
        """Does the ledger say how the run ended? If not it is still running, or everything was cut off at once."""
        return not self.decisions or any(record.kind == DecisionKind.STOP.value for record in self.decisions)

    def last_steps(self) -> dict[int, int]:
        """The newest step of each rank."""
        newest: dict[int, int] = {}
        for step, rank in self.steps:
            newest[rank] = max(step, newest.get(rank, -1))
        return newest

    def lacks_steps_of(self, rank: int) -> bool:
        """May records of this rank be missing because they could not be written?"""
        own = (shortfall for shortfall in self.shortfalls if shortfall.writer not in (DECISIONS, AUDIT))
        return any(not shortfall.ranks or rank in shortfall.ranks for shortfall in own)
