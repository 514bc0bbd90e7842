"""A small campaign that never ran."""

from understudy_testkit.benchmark.results import Campaign, FaultResult, RunResult, TimeSplit
from understudy_testkit.benchmark.scenario import Faults, Scenario, Work


def run(arm: str, faulty: bool, wall: float, full: float | None = None, lost: int = 0, failure: str = "") -> RunResult:
    fault = FaultResult(
        kind="kill", rank=1, step=40, at=20.0, proof="gone", noticed=0.1, stepping=full, full_strength=full
    )
    return RunResult(
        arm=arm,
        scenario="made-up",
        repetition=0,
        faulty=faulty,
        finished=not failure,
        exit_code=1 if failure else 0,
        failure=failure,
        wall_clock=wall,
        step_time=0.2,
        split=TimeSplit(startup=5.0, useful=wall - 10, reduced=0.0, wasted=2.0, downtime=3.0),
        steps_lost=lost,
        samples_dropped=0,
        samples_repeated=0,
        samples_expected=6400,
        faults=(fault,) if faulty else (),
        timeline=tuple((5 + 0.2 * step, step) for step in range(100)),
        losses=(2.0, 1.0),
        weights="abc",
        busy_before=0.0,
        load_after=2.0,
        versions={"torch": "2.15.0"},
    )


def campaign() -> Campaign:
    return Campaign(
        scenario=Scenario(name="made-up", title="A made-up story", work=Work(steps=100), faults=Faults(kill=1)),
        machine={"cores": "2"},
        settings={"bare": {}, "restart": {"--flag": "a reason"}, "understudy": {}},
        titles={"bare": "the limit", "restart": "all start again", "understudy": "ours"},
        left_out={"torchft": "it is not installed"},
        runs=(
            run("bare", False, 25.0),
            run("restart", True, 60.0, full=8.0, lost=12),
            run("understudy", False, 25.5),
            run("understudy", True, 27.0, full=0.5),
            run("restart", True, 99.0, failure="exit code 1: a sad story"),
        ),
    )
