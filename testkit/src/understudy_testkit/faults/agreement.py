"""Whether `understudy status`, `/metrics` and the ledger tell the same of a job, at one moment of its life.

Pure: what was read comes in, disagreements come out. The three are read one after another while the job moves, so a
moment is a row of readings: the ledger, status, metrics, status, the ledger. Nothing is waved away because something
moved meanwhile: numbers that only grow must lie between those before and after, a stage must lie on the way from one to
the other, and where status said the same before and after, the metrics between must say exactly that.

What ranks have committed is judged when the run is over (`against_the_ledger`): its records have the time of each
commit, by the clock of the host that all here share.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from understudy.ledger.records import RecoveryRecord, StepRecord
from understudy.protocol.stages import Stage

LAG = 3.0
"""Seconds that a commit may take to be shown: agents tell steps once a second at most, and looking takes time too."""

_ORDER = [Stage.FOUNDING, Stage.STOPPING, Stage.FORMING, Stage.TRAINING, Stage.STOPPED]
"""Within a generation. A stage with a later generation is always further on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """By status. `events`: how many decisions and recoveries its process has counted; while it stays, nothing was
    decided. `holders`: rank -> member. `training`: the ranks whose holders train; a rank that was just lost, or whose
    holder only prepares, delays no rank: what the others have committed counts, and it will be given that."""

    api: str
    leads: bool
    generation: int | None = None
    stage: str | None = None
    step: int | None = None
    absent: frozenset[int] = frozenset()
    degraded: bool = False
    recoveries: int = 0
    events: int = 0
    holders: Mapping[int, str]
    training: frozenset[int] = frozenset()
    standings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """By the metrics of one coordinator. `recoveries`: since its process began."""

    leads: bool
    generation: int | None = None
    stage: str | None = None
    step: int | None = None
    absent: int = 0
    degraded: bool = False
    recoveries: int = 0
    standings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`metered` is of the coordinator that `before` is of; None: it did not answer. `written`: the recoveries that the
    ledger had before any view was asked. `began`, `ended`: around all."""

    began: float
    written: int
    before: Told
    metered: Metered | None
    after: Told
    ended: float

    @property
    def led(self) -> bool:
        """One coordinator led all the time, and it knew its hosts."""
        same = self.before.leads and self.after.leads and self.before.api == self.after.api
        return same and self.before.generation is not None

    @property
    def still(self) -> bool:
        """Nothing was decided between the two looks at status."""
        return self.led and _picture(self.before) == _picture(self.after)


def from_status(document: Mapping[str, Any]) -> Told:
    """What `understudy status --json` prints."""
    job: Mapping[str, Any] | None = document["job"]
    if job is None or not job["leading"]:
        return Told(api=document["api"] or "", leads=False, holders={}, standings={})
    absent = frozenset(job["absent_ranks"])
    held = [one for one in document["members"] if one["rank"] not in absent]
    standings = [one["standing"] for one in held]
    world = job["world_size"] or 0
    counts = {name: standings.count(name) for name in ("joining", "prepared", "active")}
    return Told(
        api=document["api"],
        leads=True,
        generation=job["generation"],
        stage=job["stage"],
        step=job["committed_step"],
        absent=absent,
        degraded=job["degraded"],
        recoveries=job["recoveries"],
        events=job["newest_event"],
        holders={one["rank"]: one["member"] for one in document["members"]},
        training=frozenset(one["rank"] for one in held if one["standing"] == "active"),
        standings={**counts, "vacant": max(0, world - len(absent) - len(held)), "absent": len(absent)},
    )


def from_metrics(page: str) -> Metered:
    """What `/metrics` of one coordinator shows."""
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "training_job"]
            values.setdefault(sample.name, {})[",".join(labels)] = sample.value

    def plain(name: str) -> int | None:
        found = values.get(f"understudy_{name}", {}).get("")
        return None if found is None else int(found)

    ranks = _whole(values.get("understudy_ranks", {}))
    stages = (name for name, value in values.get("understudy_stage", {}).items() if value == 1.0)
    return Metered(
        leads=plain("leading") == 1,
        generation=plain("generation"),
        stage=next(stages, None),
        step=plain("committed_step"),
        absent=ranks.get("absent", 0),
        degraded=plain("degraded") == 1,
        recoveries=sum(_whole(values.get("understudy_recoveries_total", {})).values()),
        standings=ranks,
    )


def _whole(values: Mapping[str, float]) -> dict[str, int]:
    return {name: int(value) for name, value in values.items()}


def within(document: Mapping[str, Any]) -> Iterator[str]:
    """What one document of status says of itself in several places must be one thing."""
    job = document["job"]
    if job is None or not job["leading"] or job["stage"] is None:
        return
    members, spares, hosts = document["members"], document["spares"], document["hosts"]
    by_host: dict[str, list[int]] = {}
    for one in members:
        by_host.setdefault(one["host"], []).append(one["rank"])
    shown = {one["host"]: sorted(one["ranks"]) for one in hosts if one["ranks"]}
    if shown != {host: sorted(ranks) for host, ranks in by_host.items()}:
        yield f"status: hosts have the ranks {shown}, and their members {by_host}"
    if (up := sum(one["connected"] for one in members)) != job["ranks_up"]:
        yield f"status: {job['ranks_up']} ranks are up, and {up} of the members"
    if (warm := sum(one["standing"] == "parked" for one in spares)) != job["spares_warm"]:
        yield f"status: {job['spares_warm']} spares are warm, and {warm} of those that it lists"
    if job["degraded"] != bool(job["absent_ranks"]):
        yield f"status: degraded is {job['degraded']}, and absent are {job['absent_ranks']}"


def disagreements(moment: Moment, recalled: int) -> Iterator[str]:
    """Between the readings of one moment. `recalled`: how many recoveries the process that leads was told of by its
    predecessors, and counts in status but not in its own metrics."""
    before, after, metered = moment.before, moment.after, moment.metered
    if not moment.led:
        return
    if before.recoveries < moment.written:
        yield f"the ledger had {moment.written} recoveries, and status counted {before.recoveries} after that"
    if metered is None or not metered.leads:
        yield "status was told by a coordinator that leads, and its metrics say that it does not"
        return
    yield from _between("generation", before.generation, metered.generation, after.generation)
    yield from _between("recoveries", before.recoveries, metered.recoveries + recalled, after.recoveries)
    yield from _between("committed step", before.step, metered.step, after.step)
    if metered.degraded != (metered.absent > 0):
        yield f"metrics: degraded is {metered.degraded}, and {metered.absent} ranks are absent"
    places = [_place(before), _place(metered), _place(after)]
    if None not in places and not places[0] <= places[1] <= places[2]:  # type: ignore[operator]
        yield (
            f"stages go back: {before.stage} of {before.generation}, {metered.stage} of {metered.generation}, "
            f"{after.stage} of {after.generation}"
        )
    if moment.still:
        if (metered.stage, metered.degraded, metered.absent) != (before.stage, before.degraded, len(before.absent)):
            yield f"nothing moved, and metrics say {metered.stage}, {metered.absent} absent; status says {before}"
        if dict(metered.standings) != dict(before.standings):
            yield f"nothing moved, and ranks by standing are {metered.standings}; by status {before.standings}"


def _picture(told: Told) -> tuple[object, ...]:
    return (told.generation, told.stage, told.events, told.absent, dict(told.holders), dict(told.standings))


def _place(told: Told | Metered) -> tuple[int, int] | None:
    if told.generation is None or told.stage is None:
        return None
    return told.generation, [stage.value for stage in _ORDER].index(told.stage)


def _between(what: str, before: int | None, middle: int | None, after: int | None) -> Iterator[str]:
    if middle is None:
        if before is not None and after is not None:
            yield f"{what}: {before} and {after} by status, and nothing by the metrics between"
        return
    if (before is not None and middle < before) or (after is not None and middle > after):
        yield f"{what}: {before} by status, {middle} by metrics, {after} by status"


# -- the whole run -----------------------------------------------------------------------------------------------------


class Ledger:
    """All that a finished run has written."""

    def __init__(self, steps: Iterable[StepRecord], recoveries: Sequence[RecoveryRecord]) -> None:
        self.recoveries = sorted(recoveries, key=lambda record: record.at)
        self.generations: dict[int, dict[int, StepRecord]] = {}
        surely: dict[int, list[tuple[float, int]]] = {}
        perhaps: dict[int, list[tuple[float, int]]] = {}
        for record in sorted(steps, key=lambda record: record.at):
            self.generations.setdefault(record.generation, {})[record.rank] = record
            earlier = perhaps.setdefault(record.rank, [])
            # The last records of a predecessor may have been lost with its host: what was inherited, it had committed.
            at = earlier[-1][0] if record.inherited and earlier else record.at
            earlier.append((at, record.step + 1))
            surely.setdefault(record.rank, []).append((record.at, record.step + 1))
        self._surely = {rank: _running_maximum(found) for rank, found in surely.items()}
        self._perhaps = {rank: _running_maximum(found) for rank, found in perhaps.items()}

    def at_least(self, ranks: Iterable[int], at: float) -> int:
        """What each of these ranks had committed by then."""
        return min((_value(self._surely.get(rank, ()), at) for rank in ranks), default=0)

    def at_most(self, ranks: Iterable[int], at: float) -> int:
        """What may be called committed: each of these ranks had it, or a recovery had agreed to go on there. Without
        any rank, what any had: a step commits on all or on none."""
        had = {rank: _value(reached, at) for rank, reached in self._perhaps.items()}
        agreed = [record.step for record in self.recoveries if record.opened_at <= at]
        together = min((had.get(rank, 0) for rank in ranks), default=max(had.values(), default=0))
        return max([together, *agreed])

    def counted(self, at: float) -> int:
        return sum(record.at <= at for record in self.recoveries)

    def recovering(self, began: float, ended: float) -> RecoveryRecord | None:
        """The recovery that was under way all the time. One that was planned lets training go on for most of it."""
        whole = (one for one in self.recoveries if one.opened_at < began and ended < one.at and not one.planned)
        return next(whole, None)


def against_the_ledger(moment: Moment, ledger: Ledger, world: int) -> Iterator[str]:
    """Each look at status against what the ledger says, in the end, of that time."""
    if not moment.led:
        return
    for told in (moment.before, moment.after):
        yield from _steps(told, moment, ledger, world)
        yield from _holders(told, ledger)
        least, most = ledger.counted(moment.began - LAG), ledger.counted(moment.ended)
        if not least <= told.recoveries <= most:
            yield f"status counts {told.recoveries} recoveries; by the ledger {least} to {most}"
    under_way = ledger.recovering(moment.began, moment.ended)
    if moment.still and under_way is not None and moment.before.stage == Stage.TRAINING.value:
        yield f"status says training, and the ledger that generation {under_way.generation} was being formed"


def behind(moment: Moment, ledger: Ledger, world: int) -> float:
    """For how many seconds the step that status showed first had been passed by all ranks."""
    told = moment.before
    if told.step is None or not moment.led:
        return 0.0
    ranks = [rank for rank in range(world) if rank not in told.absent]
    low, high = 0.0, 60.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if ledger.at_least(ranks, moment.began - middle) > told.step else (low, middle)
    return low


def _steps(told: Told, moment: Moment, ledger: Ledger, world: int) -> Iterator[str]:
    if told.step is None:
        return
    ranks = [rank for rank in range(world) if rank not in told.absent]
    if told.step > (most := ledger.at_most(told.training, moment.ended)):
        yield f"status says that {told.step} steps are committed, and by the ledger no more than {most} were"
    if told.step < (least := ledger.at_least(ranks, moment.began - LAG)):
        yield f"status says that {told.step} steps are committed, and all ranks had {least} {LAG:g} s before"


def _holders(told: Told, ledger: Ledger) -> Iterator[str]:
    """A member that committed a step in this generation held its rank in it, and knew which ranks were absent."""
    if told.generation is None or told.stage != Stage.TRAINING.value:
        return
    for rank, record in sorted(ledger.generations.get(told.generation, {}).items()):
        if record.inherited:
            continue
        if told.holders.get(rank) != record.member:
            yield (
                f"generation {told.generation}: status says that {told.holders.get(rank)} holds rank {rank}, and "
                f"{record.member} committed step {record.step} there"
            )
        absent = frozenset(() if record.sharing is None else record.sharing.absent)
        if absent != told.absent:
            yield (
                f"generation {told.generation}: absent are {sorted(told.absent)} by status, and {sorted(absent)} by "
                f"what rank {rank} committed"
            )


def _running_maximum(found: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    times = [at for at, _ in found]
    return tuple(zip(times, itertools.accumulate((step for _, step in found), max), strict=True))


def _value(reached: Sequence[tuple[float, int]], at: float) -> int:
    place = bisect.bisect_right(reached, at, key=lambda entry: entry[0])
    return 0 if place == 0 else reached[place - 1][1]
