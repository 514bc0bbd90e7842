"""Compares two runs, place by place: the same steps on the same ranks, the same batches, the same state.

Knows: which differences matter and how strong the result is. Does not know: files (that is `reading`) or terminals.
Called by `understudy verify`, tests and claims. Linear in the number of records.

A digest is compared at the steps at which both runs took it; there every rank must have it in both. The one exception:
a rank that died after it had applied a step and before it wrote that down. Its successor records the step as inherited,
and cannot know the dead member's random numbers; such a place is counted and named. Two runs in which something was
never compared are not called identical: that is the weaker verdict, and it says what is missing.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from understudy.ledger.reading import FIELDS, Run
from understudy.ledger.records import StepRecord


class Verdict(enum.Enum):
    IDENTICAL = "identical"  # every place is there in both, and all four digests were compared and are equal
    DIFFERENT = "different"
    WEAK = "weak"  # no difference seen, but some digest was never compared
    NOTHING = "nothing"  # there is nothing to compare


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which the runs part. `field` is "record" when a whole record is missing."""

    step: int | None
    rank: int | None
    field: str
    left: str
    right: str

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.field}: {self.left} in A, {self.right} in B"
        return f"step {self.step}, rank {self.rank}, {self.field}: {self.left} in A, {self.right} in B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`compared`: per field, the number of places at which it was there in both runs."""

    verdict: Verdict
    steps: tuple[int, int]
    ranks: tuple[int, int]
    digest_steps: tuple[int, int]  # steps at which parameters were digested, in A and in B
    compared: dict[str, int]
    last_compared: dict[str, int]  # per field, the newest step at which it was compared
    unknown: dict[str, int]  # per field, the inherited places that could not tell it
    differing_places: int = 0
    first: Difference | None = None

    @property
    def never_compared(self) -> tuple[str, ...]:
        return tuple(field for field in FIELDS if not self.compared[field])

    def sentence(self) -> str:
        """The verdict in one line."""
        if self.verdict is Verdict.NOTHING:
            return "nothing to compare: neither run has a step that can be compared"
        if self.verdict is Verdict.DIFFERENT:
            places = f" ({self.differing_places} places differ)" if self.differing_places > 1 else ""
            return f"different, first at {self.first}{places}"
        if self.verdict is Verdict.WEAK:
            seen = [_plural(field) for field in FIELDS if self.compared[field]]
            same = f"identical {_and(seen)}" if seen else "the same steps and ranks"
            missing = self.never_compared
            if missing == FIELDS[1:]:
                taken = "no digests were taken" if not any(self.digest_steps) else "no digests were taken by both"
                return f"{same}; {taken}, so equal state is not shown"
            return f"{same}; not compared: {_and(list(missing))}"
        unknown = "".join(f", {field} unknown at {count} inherited" for field, count in self.unknown.items() if count)
        return f"identical: {self.steps[0]} steps on {self.ranks[0]} ranks{self._tail()}{unknown}"

    def _tail(self) -> str:
        """Digests may be taken every so many steps; then the last steps are only covered by their batches."""
        covered = min(self.last_compared[field] for field in FIELDS)
        return "" if covered == self.steps[0] - 1 else f", with digests up to step {covered}"


def compare(left: Run, right: Run) -> Comparison:
    """Compare two runs. The first difference is the first by step, then rank, then field."""
    compared, unknown = dict.fromkeys(FIELDS, 0), dict.fromkeys(FIELDS, 0)
    last: dict[str, int] = {}
    first: Difference | None = None
    places = 0
    if left.info.world_size != right.info.world_size:
        first = Difference(None, None, "world size", str(left.info.world_size), str(right.info.world_size))
    common = {field: left.steps_with(field) & right.steps_with(field) for field in FIELDS}
    for step in range(max(left.step_count, right.step_count)):
        fields = [field for field in FIELDS if step in common[field]]
        for rank in range(max(left.info.world_size, right.info.world_size)):
            differences = list(_differences(left, right, step, rank, fields, compared, unknown))
            if differences:
                places += 1
                first = first or differences[0]
        last.update(dict.fromkeys(fields, step))
    if not left.steps and not right.steps:
        verdict = Verdict.NOTHING
    elif first is not None:
        verdict = Verdict.DIFFERENT
    else:
        verdict = Verdict.IDENTICAL if all(compared.values()) else Verdict.WEAK
    return Comparison(
        verdict=verdict,
        steps=(left.step_count, right.step_count),
        ranks=(left.info.world_size, right.info.world_size),
        digest_steps=(len(left.steps_with("parameters")), len(right.steps_with("parameters"))),
        compared=compared,
        last_compared=last,
        unknown=unknown,
        differing_places=places,
        first=first,
    )


def _differences(
    left: Run,
    right: Run,
    step: int,
    rank: int,
    fields: list[str],
    compared: dict[str, int],
    unknown: dict[str, int],
) -> Iterator[Difference]:
    """Differences at one place; counts what was compared."""
    one, two = left.steps.get((step, rank)), right.steps.get((step, rank))
    if one is None or two is None:
        yield Difference(step, rank, "record", _presence(one), _presence(two))
        return
    for field in fields:
        mine, theirs = getattr(one, field), getattr(two, field)
        if (mine is None and one.inherited) or (theirs is None and two.inherited):
            unknown[field] += 1
            continue
        if mine is not None and theirs is not None:
            compared[field] += 1
        if mine != theirs:
            yield Difference(step, rank, field, mine or "not taken", theirs or "not taken")


def _presence(record: StepRecord | None) -> str:
    return "missing" if record is None else "there"


def _plural(field: str) -> str:
    return "batches" if field == "batch" else field


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
