"""What one run measured, as it is kept in a file. The report is made from these files alone."""

from pathlib import Path

import msgspec

from understudy_testkit.benchmark.scenario import Scenario


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds after the signal; None when it was never seen before the run's end. `at`: since the start of the run."""

    kind: str
    rank: int
    step: int
    at: float
    proof: str
    noticed: float | None  # a worker was told by its approach
    stepping: float | None  # a step that needed the new world was committed
    full_strength: float | None  # all ranks committed one step together, the struck one by a healthy process


class TimeSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. Their sum is the wall clock of the run."""

    startup: float  # until all ranks had committed the first step
    useful: float
    reduced: float  # lost because fewer ranks than planned contributed to a step
    wasted: float  # steps that had to be done again
    downtime: float


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    arm: str
    scenario: str
    repetition: int
    faulty: bool  # False: the run without faults, for the steady state
    finished: bool
    exit_code: int | None
    failure: str  # why it did not finish
    wall_clock: float
    step_time: float  # median seconds per step, without the first ones
    split: TimeSplit
    steps_lost: int
    samples_dropped: int
    samples_repeated: int
    samples_expected: int
    faults: tuple[FaultResult, ...]
    timeline: tuple[tuple[float, int], ...]  # seconds since the start, highest step that is done
    losses: tuple[float, ...]  # mean over the ranks, by step
    weights: str  # digest at the end
    busy_before: float
    load_after: float
    versions: dict[str, str]


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario on one machine."""

    scenario: Scenario
    machine: dict[str, str]
    settings: dict[str, dict[str, str]]  # by arm
    titles: dict[str, str]
    left_out: dict[str, str]  # arms that could not run here, and why
    runs: tuple[RunResult, ...]


def save(path: Path, campaign: Campaign) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(campaign), indent=1))
    temporary.rename(path)


def load(path: Path) -> Campaign:
    return msgspec.json.decode(path.read_bytes(), type=Campaign)
