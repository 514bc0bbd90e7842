"""What Prometheus scraped of real jobs, sample by sample, and how alert rules of minutes are tried on it.

A recording is stretched when it is replayed: the samples stay what and in which order they were, and one that was
scraped a second after the last comes `STRETCH` seconds after it. So the rules are those that are deployed, unchanged,
and everything that lasts too long in a job lasts longer in its replay: a false alarm is more likely there, not less.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from understudy_testkit.faults import alert_replay
from understudy_testkit.faults.alert_replay import ABSENT, GONE, Alert, Check

STRETCH = 15  # seconds of the replay for each of the recording
_SECONDS = ("understudy_committed_step_unchanged_seconds",)  # values that are themselves stretches of time
_OWN = "scrape_"  # what Prometheus tells of its own work

Sample = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Scraped:
    """One series as Prometheus keeps it: Unix times and values."""

    name: str
    labels: Mapping[str, str]
    samples: Sequence[Sample]


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """`series`: values in promtool's notation, one for each `interval` seconds. `struck`: the number of the first
    sample after what happened on that day."""

    interval: int
    series: dict[str, list[str]]
    struck: int

    @property
    def samples(self) -> int:
        return max(map(len, self.series.values()), default=0)


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """`fires`: the alerts that must fire at its end. No other may at any time, and none before the day was `struck`."""

    name: str
    fires: list[Alert]
    recording: Recording


def record(scraped: Iterable[Scraped], interval: int, struck: float) -> Recording:
    """All scrapes of a target on one grid. A series that is missing from a scrape of its target is gone; at a time
    without a scrape there is nothing to say about it."""
    kept = [one for one in scraped if not one.name.startswith(_OWN)]
    began = min((at for one in kept for at, _ in one.samples), default=struck)

    def place(at: float) -> int:
        return max(0, round((at - began) / interval))

    scrapes: dict[str, dict[int, float]] = {}
    for one in kept:
        if one.name == "up":
            scrapes[one.labels["instance"]] = {place(at): at for at, _ in one.samples}
    length = 1 + max((number for places in scrapes.values() for number in places), default=0)
    series = {}
    for one in kept:
        values, known = dict(one.samples), scrapes.get(one.labels.get("instance", ""), {})
        found: list[str] = []
        there = False
        for number in range(length):
            value = values.get(known[number]) if number in known else None
            found.append(value if value is not None else GONE if there and number in known else ABSENT)
            there = value is not None or (there and number not in known)
        series[alert_replay.written(one.labels, one.name)] = found
    return Recording(interval=interval, series=series, struck=place(struck) + 1)


def replay(folder: Path, rules: Path, day: Day) -> None:
    """Raises `NotProven` when an alert is missing or wrong."""
    recording = day.recording
    checks = (
        Check(max(0, recording.struck - 1)),
        Check(recording.samples - 1, frozenset(day.fires)),
    )
    series = {name: _stretched(name, values) for name, values in recording.series.items()}
    alert_replay.judge(folder, rules, series, recording.interval * STRETCH, checks)


def _stretched(name: str, values: Sequence[str]) -> Sequence[str]:
    if not name.startswith(_SECONDS):
        return values
    return [value if value in (ABSENT, GONE) else repr(float(value) * STRETCH) for value in values]
