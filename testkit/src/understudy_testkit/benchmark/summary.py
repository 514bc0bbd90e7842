"""Figures of an arm over all its runs: medians with their spread, and what they are compared with."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from understudy_testkit.benchmark.results import Campaign, FaultResult, RunResult


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some values; `missing` of them never came."""

    median: float
    least: float
    greatest: float
    count: int
    missing: int = 0

    def shown(self, unit: str = "s", digits: int = 2) -> str:
        blank = " " if unit else ""
        text = f"{self.median:.{digits}f}{blank}{unit} ({self.least:.{digits}f} to {self.greatest:.{digits}f})"
        return f"{text}, {self.missing} of {self.count + self.missing} never" if self.missing else text


def spread(values: Iterable[float | None]) -> Spread | None:
    every = list(values)
    seen = [value for value in every if value is not None]
    if not seen:
        return None
    return Spread(statistics.median(seen), min(seen), max(seen), len(seen), len(every) - len(seen))


def runs_of(campaign: Campaign, arm: str, faulty: bool) -> list[RunResult]:
    return [run for run in campaign.runs if run.arm == arm and run.faulty is faulty]


def arms_of(campaign: Campaign) -> list[str]:
    return list(campaign.titles)


def faults_of(campaign: Campaign, arm: str, kind: str | None = None) -> list[FaultResult]:
    runs = runs_of(campaign, arm, faulty=True)
    return [fault for run in runs for fault in run.faults if kind is None or fault.kind == kind]


def over_runs(campaign: Campaign, arm: str, faulty: bool, value: Callable[[RunResult], float]) -> Spread | None:
    return spread(value(run) for run in runs_of(campaign, arm, faulty))


def to_bare(campaign: Campaign, arm: str, faulty: bool, value: Callable[[RunResult], float]) -> Spread | None:
    """Each run's value, divided by the mean of those of `bare` (without faults) in the same repetition."""
    bare: dict[int, list[float]] = {}
    for run in runs_of(campaign, "bare", faulty=False):
        bare.setdefault(run.repetition, []).append(value(run))
    own = runs_of(campaign, arm, faulty)
    return spread(value(run) / statistics.fmean(bare[run.repetition]) for run in own if run.repetition in bare)


def wall_clock_ratio(campaign: Campaign, arm: str) -> Spread | None:
    """With faults, against `bare` without: no arm can be faster."""
    return to_bare(campaign, arm, arm != "bare", lambda run: run.wall_clock)


def steady_ratio(campaign: Campaign, arm: str) -> Spread | None:
    """Step time without faults."""
    return to_bare(campaign, arm, False, lambda run: run.step_time)


def reference_weights(campaign: Campaign) -> str | None:
    found = {run.weights for run in runs_of(campaign, "bare", faulty=False)}
    return found.pop() if len(found) == 1 else None


def weights_verdict(campaign: Campaign, arm: str) -> str:
    reference = reference_weights(campaign)
    runs = runs_of(campaign, arm, faulty=True)
    if reference is None or not runs:
        return "-"
    same = sum(run.weights == reference for run in runs)
    return "identical" if same == len(runs) else f"{same} of {len(runs)} identical"


def times_faster(campaign: Campaign, arm: str, value: Callable[[FaultResult], float | None]) -> float | None:
    """How many times longer `arm` needs than `understudy`, by medians."""
    own = spread(value(fault) for fault in faults_of(campaign, "understudy"))
    other = spread(value(fault) for fault in faults_of(campaign, arm))
    return other.median / own.median if own and other and own.median else None
