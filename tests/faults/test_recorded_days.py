"""Scrapes become series, and series alerts: on the rules that are deployed."""

from pathlib import Path

import pytest

from understudy_testkit.faults.alert_replay import Alert
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.recorded_days import Day, Recording, Scraped, record, replay

pytestmark = pytest.mark.timeout(180)
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "understudy.rules.yml"
TARGET = {"job": "understudy", "instance": "one:80"}
JOB = {**TARGET, "training_job": "one"}


def scraped(name: str, labels: dict[str, str], values: list[str], skewed: float = 0.0) -> Scraped:
    return Scraped(name, labels, [(1000.0 + n + skewed, value) for n, value in enumerate(values) if value])


def series(recording: Recording, name: str) -> list[str]:
    return next(values for series, values in recording.series.items() if series.startswith(name))


def test_a_series_that_a_scrape_does_not_have_is_gone_and_without_a_scrape_nothing_is_said() -> None:
    up = scraped("up", TARGET, ["1", "1", "", "0", "0"], 0.02)
    leading = scraped("understudy_leading", JOB, ["", "1", "", "", ""], 0.02)
    recording = record([up, leading, scraped("scrape_duration_seconds", TARGET, ["1"] * 5, 0.02)], 1, 1002.5)
    assert series(recording, "up") == ["1", "1", "_", "0", "0"]
    assert series(recording, "understudy_leading") == ["_", "1", "_", "stale", "_"]
    assert len(recording.series) == 2 and recording.struck == 3


def leaderless(*fires: Alert) -> Day:
    """It leads for ten seconds, and is gone for ten."""
    up = scraped("up", TARGET, ["1"] * 10 + ["0"] * 10)
    leading = scraped("understudy_leading", JOB, ["1"] * 10)
    finished = scraped("understudy_finished", JOB, ["0"] * 10)
    return Day(name="leaderless", fires=list(fires), recording=record([up, leading, finished], 1, 1009.5))


DOWN, NOBODY = Alert("UnderstudyDown", instance="one:80"), Alert("UnderstudyNobodyLeads", training_job="one")


def test_exactly_the_alerts_of_the_day_fire(tmp_path: Path) -> None:
    replay(tmp_path, RULES, leaderless(DOWN, NOBODY))
    for wrong in ((DOWN,), (DOWN, NOBODY, Alert("UnderstudyDegraded", training_job="one")), ()):
        with pytest.raises(NotProven):
            replay(tmp_path, RULES, leaderless(*wrong))


def test_times_that_are_values_are_stretched_too(tmp_path: Path) -> None:
    """Standing still for 61 s of the recording is more than 900 s of the replay."""

    def still(seconds: int) -> Day:
        names = ("up", "understudy_leading", "understudy_finished", "understudy_committed_step_unchanged_seconds")
        values = [["1"] * 5, ["1"] * 5, ["0"] * 5, ["1"] * 4 + [str(seconds)]]
        kept = [scraped(name, TARGET if name == "up" else JOB, v) for name, v in zip(names, values, strict=True)]
        fires = [Alert("UnderstudyStandsStill", training_job="one")] if seconds > 60 else []
        return Day(name="still", fires=fires, recording=record(kept, 1, 1002.5))

    replay(tmp_path, RULES, still(61))
    replay(tmp_path, RULES, still(59))
