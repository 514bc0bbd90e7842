"""The report is made from kept results alone, and says what is bad as well as what is good."""

from pathlib import Path

from understudy.benchmark import results
from understudy.benchmark.report import summary_lines, write_report
from understudy.benchmark.results import Campaign, FaultResult, RunResult, TimeSplit
from understudy.benchmark.scenario import Faults, Scenario, Work


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


def test_the_report_has_tables_pictures_settings_and_failures(tmp_path: Path) -> None:
    results.save(tmp_path / "made-up.json", campaign())
    written = write_report(results.load(tmp_path / "made-up.json"), tmp_path)
    assert sorted(path.name for path in written) == [
        "made-up-recovery.png",
        "made-up-steps.png",
        "made-up-time.png",
        "made-up.md",
    ]
    assert all(path.stat().st_size > 1000 for path in written)
    text = (tmp_path / "made-up.md").read_text()
    assert "| kill, restart | 2 |" in text and "16.0" in text, "sixteen times longer than understudy"
    assert "1 of 2 never" in text
    assert "a sad story" in text and "torchft was left out: it is not installed" in text
    assert "`--flag`: a reason" in text and "1.000 " in text
    assert "What a desk benchmark cannot show" in text


def test_the_terminal_gets_one_line_per_arm() -> None:
    lines = summary_lines(campaign())
    assert [line.split()[0] for line in lines[1:]] == ["bare", "restart", "understudy"]
    assert "1.08 x bare" in lines[3] and "identical" in lines[3]
    assert "12 steps lost" in lines[2] and "1 RUNS FAILED" in lines[2]
