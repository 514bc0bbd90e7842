"""Compares two runs, place by place: the same steps on the same ranks, the same batches, the same state.

Knows: which differences matter and how strong the result is. Does not know: files (that is `reading`) or terminals.
Called by `understudy verify`, tests and claims. Linear in the number of records.

A digest is compared at the steps at which both runs took it; there every rank must have it in both. The one exception:
a rank that died after it had applied a step and before it wrote that down. Its successor records the step as inherited,
and cannot know the dead member's random numbers, nor buffers that only that one had; such a place is counted and named.
So are the last records of a rank whose host was lost with them.
Digests that were taken in different ways (`digest_kinds`) say nothing about each other, and are not called different.
Two runs in which something was never compared are not called identical: that is the weaker verdict, and it says what is
missing.

A run that began with a durable checkpoint has nothing to compare before that step. A record that is missing is a
difference, unless its ledger says that records could not be written: then what is there is compared, and the verdict
says what is not there. A run whose own records contradict each other is different from every other one.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from understudy.ledger.digest_kinds import kind_of
from understudy.ledger.records import StepRecord
from understudy.ledger.run import FIELDS, OPTIONAL, Conflict, Place, Run


class ComparisonVerdict(enum.Enum):
    IDENTICAL = "identical"  # every place is there in both, and all digests were compared and are equal
    DIFFERENT = "different"
    WEAK = "weak"  # no difference seen, but some digest was never compared, or could not be
    INCOMPLETE = "incomplete"  # no difference seen, but records could not be written
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


@dataclass(slots=True)
class Absence:
    """Records that one run does not have and could not write."""

    count: int = 0
    steps: tuple[int, int] = (-1, -1)  # the first and the last
    ranks: set[int] = field(default_factory=set)

    def add(self, place: Place) -> None:
        step, rank = place
        self.steps = (self.steps[0] if self.count else step, step)
        self.ranks.add(rank)
        self.count += 1

    def __str__(self) -> str:
        if not self.count:
            return "which records are missing is not known"
        first, last = self.steps
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        ranks = sorted(self.ranks)
        where = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        many = "1 record is" if self.count == 1 else f"{self.count} records are"
        return f"{many} missing, of {where}, {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`compared`: per field, the number of places at which it was there in both runs."""

    verdict: ComparisonVerdict
    began: tuple[int, int]
    steps: tuple[int, int]
    ranks: tuple[int, int]
    digest_steps: tuple[int, int]  # steps at which parameters were digested, in A and in B
    compared: dict[str, int]
    last_compared: dict[str, int]  # per field, the newest step at which it was compared
    unknown: dict[str, int]  # per field, the inherited places that could not tell it
    kinds: dict[str, tuple[str, str]]  # fields whose digests were taken in different ways, in A and in B
    lost_with_host: int  # places whose records were lost with their host
    differing_places: int
    differing_fields: frozenset[str]
    first: Difference | None
    conflicts: tuple[tuple[Conflict, ...], tuple[Conflict, ...]]  # that count, in A and in B
    absent: tuple[Absence, Absence]  # in A and in B
    short: tuple[str, str]  # which writers lack records and why, in A and in B
    from_checkpoint: tuple[bool, bool]

    @property
    def never_compared(self) -> tuple[str, ...]:
        return tuple(name for name in FIELDS if name not in OPTIONAL and not self.compared[name])

    def sentence(self) -> str:
        """The verdict in one line."""
        match self.verdict:
            case ComparisonVerdict.NOTHING:
                return "nothing to compare: the runs have no step in common that can be compared"
            case ComparisonVerdict.DIFFERENT:
                return self._different()
            case ComparisonVerdict.WEAK:
                return self._weak()
            case ComparisonVerdict.INCOMPLETE:
                same = f"not compared: {_and(list(self.never_compared))}; " if self.never_compared else ""
                return f"identical in all that both have; {same}{'; '.join(self._incomplete())}"
        unknown = "".join(f", {name} unknown at {count} inherited" for name, count in self.unknown.items() if count)
        lost = f", {self.lost_with_host} records lost with their host" if self.lost_with_host else ""
        return f"identical{self._since()}: {self._extent()}{self._tail()}{unknown}{lost}"

    def _different(self) -> str:
        for name, conflicts in zip("AB", self.conflicts, strict=True):
            if conflicts:
                more = f" ({len(conflicts)} such places)" if len(conflicts) > 1 else ""
                return f"different: {name} contradicts itself at {conflicts[0]}{more}"
        places = f" ({self.differing_places} places differ)" if self.differing_places > 1 else ""
        only = ""
        if self.differing_fields and self.differing_fields <= OPTIONAL:
            only = ", and nowhere else: batches, parameters and optimizer are the same wherever both have them"
        return f"different, first at {self.first}{places}{only}"

    def _weak(self) -> str:
        seen = [_plural(name) for name in FIELDS if self.compared[name]]
        same = f"identical {_and(seen)}" if seen else "the same steps and ranks"
        missing = self.never_compared
        if self.kinds:
            one, two = next(iter(self.kinds.values()))
            why = f"because the digests are {one} in A and {two} in B: run both with the same --ledger-digests"
            return f"{same}{self._since()}; {_and(list(self.kinds))} cannot be compared, {why}"
        if missing == ("parameters", "optimizer", "rng"):
            taken = "no digests were taken" if not any(self.digest_steps) else "no digests were taken by both"
            return f"{same}{self._since()}; {taken}, so equal state is not shown"
        return f"{same}{self._since()}; not compared: {_and(list(missing))}"

    def _incomplete(self) -> Iterator[str]:
        for name, short, absent in zip("AB", self.short, self.absent, strict=True):
            if short:
                yield f"the ledger of {name} is incomplete ({short}): {absent}"
            elif absent.count:
                yield f"the ledger of {name} does not say how its run ended: {absent}"

    def _since(self) -> str:
        """Where the comparison begins, if that is not the first step."""
        start = max(self.began)
        if not start:
            return ""
        late = [name for name, began in zip("AB", self.began, strict=True) if began == start]
        loaded = all(is_loaded for began, is_loaded in zip(self.began, self.from_checkpoint, strict=True) if began)
        how = "from a checkpoint" if loaded else "by their first records" if len(late) > 1 else "by its first record"
        return f" from step {start} on ({_and(late)} began there, {how})"

    def _extent(self) -> str:
        return f"{self.steps[0] - max(self.began)} steps on {self.ranks[0]} ranks"

    def _tail(self) -> str:
        """Digests may be taken every so many steps; then the last steps are only covered by their batches."""
        covered = min(self.last_compared[name] for name in FIELDS if name not in OPTIONAL)
        return "" if covered == self.steps[0] - 1 else f", with digests up to step {covered}"


def compare(left: Run, right: Run) -> Comparison:
    """Compare two runs. The first difference is the first by step, then rank, then field."""
    look = _Look(left, right)
    look.at_all_places()
    conflicts = tuple(() if run.lacks_decisions else run.conflicts for run in (left, right))
    return Comparison(
        verdict=look.verdict(any(conflicts)),
        began=(left.began, right.began),
        steps=(left.step_count, right.step_count),
        ranks=(left.info.world_size, right.info.world_size),
        digest_steps=(len(left.steps_with("parameters")), len(right.steps_with("parameters"))),
        compared=look.compared,
        last_compared=look.last,
        unknown=look.unknown,
        kinds=look.kinds,
        lost_with_host=look.lost_with_host,
        differing_places=look.places,
        differing_fields=frozenset(look.fields),
        first=look.first,
        conflicts=(conflicts[0], conflicts[1]),
        absent=look.absent,
        short=(_short(left), _short(right)),
        from_checkpoint=(left.from_checkpoint, right.from_checkpoint),
    )


class _Look:
    """Goes from place to place and counts."""

    def __init__(self, left: Run, right: Run) -> None:
        self.compared, self.unknown = dict.fromkeys(FIELDS, 0), dict.fromkeys(FIELDS, 0)
        self.last: dict[str, int] = {}
        self.kinds: dict[str, tuple[str, str]] = {}
        self.absent = (Absence(), Absence())
        self.first: Difference | None = None
        self.places = self.lost_with_host = 0
        self.fields: set[str] = set()
        self._runs = (left, right)
        self._last_steps = (left.last_steps(), right.last_steps())
        self._common = 0  # places that are there in both

    def at_all_places(self) -> None:
        left, right = self._runs
        sizes = left.info.world_size, right.info.world_size
        if sizes[0] != sizes[1]:
            self.first = Difference(None, None, "world size", str(sizes[0]), str(sizes[1]))
        taken = {name: left.steps_with(name) & right.steps_with(name) for name in FIELDS}
        start = max(left.began, right.began)
        for step in range(
            max(0, start - 1), max(left.step_count, right.step_count)
        ):  # with the state that it began with
            names = [name for name in FIELDS if step in taken[name]]
            for rank in range(max(sizes)):
                self._at(step, rank, names, was_trained=step >= start)
            self.last.update(dict.fromkeys(names, step))

    def _at(self, step: int, rank: int, names: list[str], was_trained: bool) -> None:
        one, two = (run.steps.get((step, rank)) for run in self._runs)
        if one is None or two is None:
            differences = [*self._missing(step, rank, one, two)] if was_trained else []
        else:
            self._common += 1
            differences = [*self._unequal(one, two, names, was_trained)]
        if differences:
            self.places += 1
            self.fields |= {difference.field for difference in differences}
            self.first = self.first or differences[0]

    def _missing(self, step: int, rank: int, one: StepRecord | None, two: StepRecord | None) -> Iterator[Difference]:
        """A difference, unless each ledger that lacks it says why it may."""
        explained = True
        for number, record in enumerate((one, two)):
            if record is not None:
                continue
            run = self._runs[number]
            if (step, rank) in run.lost_with_host:
                self.lost_with_host += 1
                continue
            cut_off = not run.ended and step > self._last_steps[number].get(rank, -1)
            if run.lacks_steps_of(rank) or cut_off:
                self.absent[number].add((step, rank))
            else:
                explained = False
        if not explained:
            yield Difference(step, rank, "record", _presence(one), _presence(two))

    def _unequal(self, one: StepRecord, two: StepRecord, names: list[str], was_trained: bool) -> Iterator[Difference]:
        for name in names:
            mine, theirs = getattr(one, name), getattr(two, name)
            if (mine is None and one.inherited) or (theirs is None and two.inherited):
                self.unknown[name] += was_trained
                continue
            if mine is not None and theirs is not None:
                if kind_of(mine) != kind_of(theirs):
                    self.kinds[name] = (kind_of(mine), kind_of(theirs))
                    continue
                self.compared[name] += 1
            if mine != theirs:
                yield Difference(one.step, one.rank, name, mine or "not taken", theirs or "not taken")

    def verdict(self, contradiction: bool) -> ComparisonVerdict:
        left, right = self._runs
        if contradiction or self.first is not None:
            return ComparisonVerdict.DIFFERENT
        if not self._common:
            return ComparisonVerdict.NOTHING
        if left.lacks_steps or right.lacks_steps or any(absent.count for absent in self.absent):
            return ComparisonVerdict.INCOMPLETE
        complete = not self.kinds and all(count for name, count in self.compared.items() if name not in OPTIONAL)
        return ComparisonVerdict.IDENTICAL if complete else ComparisonVerdict.WEAK


def _short(run: Run) -> str:
    return ", ".join(map(str, run.shortfalls)) if run.lacks_steps else ""


def _presence(record: StepRecord | None) -> str:
    return "missing" if record is None else "there"


def _plural(name: str) -> str:
    return "batches" if name == "batch" else name


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
