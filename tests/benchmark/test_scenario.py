"""Scenarios are read strictly, and their faults are the same every time."""

from pathlib import Path

import pytest

from understudy.errors import UsageError
from understudy_testkit.benchmark.arms import ARMS
from understudy_testkit.benchmark.runner import turns
from understudy_testkit.benchmark.scenario import FaultKind, Faults, Scenario, load_scenario

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scenarios"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_scenarios_of_the_project_are_valid(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert set(scenario.arms) <= set(ARMS)
    planned = scenario.schedule()
    assert planned == load_scenario(path).schedule()
    steps = [fault.step for fault in planned]
    assert steps == sorted(steps) and steps[-1] < scenario.work.steps - 1


def test_the_schedule_has_what_the_file_asks_for() -> None:
    scenario = Scenario(name="x", title="x", faults=Faults(kill=3, hang=2))
    kinds = [fault.kind for fault in scenario.schedule()]
    assert kinds.count(FaultKind.KILL) == 3 and kinds.count(FaultKind.HANG) == 2
    assert scenario.without_faults().schedule() == ()


def test_an_unknown_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('name = "x"\ntitle = "x"\n[work]\nstepz = 3\n')
    with pytest.raises(UsageError, match="stepz"):
        load_scenario(tmp_path / "x.toml")


def test_arms_take_turns_and_the_first_one_changes() -> None:
    scenario = Scenario(name="x", title="x", faults=Faults(kill=1), repetitions=2)
    order = [(turn.repetition, turn.faulty, turn.arm) for turn in turns(scenario, ["bare", "restart", "understudy"])]
    assert order == [
        (0, False, "bare"),
        (0, False, "restart"),
        (0, False, "understudy"),
        (0, False, "bare"),
        (0, True, "restart"),
        (0, True, "understudy"),
        (0, False, "bare"),
        (1, False, "restart"),
        (1, False, "understudy"),
        (1, False, "bare"),
        (1, False, "bare"),
        (1, True, "restart"),
        (1, True, "understudy"),
        (1, False, "bare"),
    ]
    names = [turn.name for turn in turns(scenario, ["bare", "restart", "understudy"])]
    assert len(set(names)) == len(names), "every run has a folder of its own"


def test_a_scenario_may_leave_out_the_steady_runs_of_all_but_bare() -> None:
    scenario = Scenario(name="x", title="x", faults=Faults(kill=1), repetitions=1, steady=("bare",))
    order = [(turn.faulty, turn.arm) for turn in turns(scenario, ["bare", "restart", "understudy"])]
    assert order == [(False, "bare"), (False, "bare"), (True, "restart"), (True, "understudy"), (False, "bare")]
