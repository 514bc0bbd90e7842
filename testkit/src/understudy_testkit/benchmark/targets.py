"""What `understudy` is meant to reach under faults, held against what was measured. A miss is told like a hit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from understudy_testkit.benchmark import summary
from understudy_testkit.benchmark.results import Campaign, FaultResult

_OWN = "understudy"
_WALL_CLOCK = 1.10  # of bare without faults
_FULL_STRENGTH = {"restart": 10.0, "torchft": 10.0, "torchft-tuned": 10.0}  # times faster than
_STEPPING = {"restart": 5.0, "torchft": 5.0, "torchft-tuned": 2.0}


@dataclass(frozen=True, slots=True)
class Target:
    what: str
    wanted: str
    measured: str
    reached: bool


def targets(campaign: Campaign) -> list[Target]:
    """Empty when the campaign has no run of `understudy` with faults."""
    if not summary.runs_of(campaign, _OWN, faulty=True):
        return []
    return [
        *_nothing_lost(campaign),
        *_wall_clock(campaign),
        *_faster(campaign, "full strength", _FULL_STRENGTH, lambda fault: fault.full_strength),
        *_faster(campaign, "stepping", _STEPPING, lambda fault: fault.stepping),
    ]


def _nothing_lost(campaign: Campaign) -> Iterator[Target]:
    runs = summary.runs_of(campaign, _OWN, faulty=True)
    finished = sum(run.finished for run in runs)
    lost = sum(run.steps_lost for run in runs)
    samples = sum(run.samples_dropped + run.samples_repeated for run in runs)
    yield Target("runs finished", "all", f"{finished} of {len(runs)}", finished == len(runs))
    yield Target("steps lost", "0", str(lost), lost == 0)
    yield Target("samples dropped or repeated", "0", str(samples), samples == 0)
    verdict = summary.weights_verdict(campaign, _OWN)
    yield Target("final weights", "identical", verdict, verdict == "identical")


def _wall_clock(campaign: Campaign) -> Iterator[Target]:
    ratio = summary.wall_clock_ratio(campaign, _OWN)
    if ratio is not None:
        wanted, measured = f"at most {_WALL_CLOCK:.2f} x bare", f"{ratio.shown('', 2)} x bare"
        yield Target("wall clock", wanted, measured, ratio.median <= _WALL_CLOCK)


def _faster(
    campaign: Campaign, what: str, wanted: dict[str, float], value: Callable[[FaultResult], float | None]
) -> Iterator[Target]:
    for arm, factor in wanted.items():
        if not summary.faults_of(campaign, arm):
            continue
        times = summary.times_faster(campaign, arm, value)
        never = times is None and summary.spread(map(value, summary.faults_of(campaign, arm))) is None
        measured = f"{arm} never was" if never else f"{times:.1f} x" if times is not None else "not measured"
        reached = never or (times is not None and times >= factor)
        yield Target(f"{what}, against {arm}", f"{factor:g} x sooner", measured, reached)
