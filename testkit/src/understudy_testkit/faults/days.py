"""Days in the life of a job that is scraped, and the alerts that each must bring: no more and no less.

Knows: what happens on each day and which alerts follow from it, by docs/runbook.md. Does not know: how a job is made;
light ones (`light_job`) and ones with real workers (`loopback_job`) have the same interfaces.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from understudy_testkit.faults.alert_replay import Alert
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.recorded_days import Day, record
from understudy_testkit.faults.scraping import INTERVAL, Scraper, scraping


class ScrapedJob(Protocol):
    """`target`: HOST:PORT of its API."""

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> str: ...

    def begin(self) -> None:
        """Returns when it trains."""

    def lose_a_rank(self) -> None: ...

    def finish(self) -> None: ...

    def kill_coordinator(self) -> None: ...


Make = Callable[[Path, str, bool], contextlib.AbstractContextManager[ScrapedJob]]
"""The folder, the name of the job, and whether it has a spare."""


@dataclass(frozen=True, slots=True)
class Script:
    """`fires`: about this job. `spare`: it has one that is warm."""

    name: str
    strike: Callable[[ScrapedJob], None]
    fires: tuple[str, ...] = ()
    spare: bool = True


HEALTHY = Script("healthy", lambda _: None)
RECOVERY = Script("recovery", lambda job: job.lose_a_rank())
DEGRADED = Script("degraded", lambda job: job.lose_a_rank(), ("UnderstudyDegraded",), spare=False)
FINISHED = Script("finished", lambda job: job.finish())
LEADERLESS = Script("leaderless", lambda job: job.kill_coordinator(), ("UnderstudyDown", "UnderstudyNobodyLeads"))
TWO_JOBS = (HEALTHY, LEADERLESS)
"""One is well, and must not hide that no coordinator leads the other one."""

_OF_TARGETS = ("UnderstudyDown",)  # it carries the labels of the scrape, and not those of the job


@dataclass(frozen=True, slots=True)
class Length:
    """Samples before and after what happens on a day."""

    before: int
    after: int


def play(folder: Path, rules: Path, scripts: Sequence[Script], make: Make, length: Length) -> dict[str, Day]:
    """All of them at once under one Prometheus. Returns a day for each, and `two jobs` if both of its are there."""
    with contextlib.ExitStack() as stack:
        made = [
            (script, stack.enter_context(make(folder / script.name, script.name, script.spare))) for script in scripts
        ]
        for _, job in made:
            job.begin()
        targets = {job.target: script for script, job in made}
        scraper = stack.enter_context(scraping(folder / "prometheus", rules, list(targets)))
        struck = _pass_the_day(scraper, made, length)
        _require_sound(scraper, scripts)
        scraped = scraper.scraped()
    days = {}
    groups: dict[str, tuple[Script, ...]] = {script.name: (script,) for script in scripts}
    if set(TWO_JOBS) <= set(scripts):
        groups["two jobs"] = TWO_JOBS
    for name, group in groups.items():
        instances = {target: script for target, script in targets.items() if script in group}
        mine = [one for one in scraped if one.labels.get("instance") in instances]
        fires = [_alert(alert, script.name, target) for target, script in instances.items() for alert in script.fires]
        days[name] = Day(name=name, fires=sorted(fires), recording=record(mine, INTERVAL, struck))
    return days


def _alert(name: str, job: str, target: str) -> Alert:
    return Alert(name, instance=target) if name in _OF_TARGETS else Alert(name, training_job=job)


def _pass_the_day(scraper: Scraper, made: Sequence[tuple[Script, ScrapedJob]], length: Length) -> float:
    """Returns when it was struck, by the wall clock, which is Prometheus'."""
    _wait_for_scrapes(scraper, length.before)
    struck = time.time()
    for script, job in made:
        script.strike(job)
    _wait_for_scrapes(scraper, length.after)
    return struck


def _wait_for_scrapes(scraper: Scraper, count: int) -> None:
    """Until so many more of every target are there."""
    before, deadline = _scrapes(scraper), time.monotonic() + 10 * INTERVAL * (count + 6)
    while True:
        now = _scrapes(scraper)
        if now and all(number - before.get(instance, 0) >= count for instance, number in now.items()):
            return
        if time.monotonic() > deadline:
            raise NotProven(f"Prometheus scrapes too slowly: {now} scrapes, {before} before, {count} more are wanted")
        time.sleep(INTERVAL / 4)


def _scrapes(scraper: Scraper) -> dict[str, int]:
    return {one.labels["instance"]: len(one.samples) for one in scraper.scraped("up")}


def _require_sound(scraper: Scraper, scripts: Sequence[Script]) -> None:
    """The real Prometheus could look at every rule, and what needs no minutes to fire did not."""
    if broken := scraper.broken_rules():
        raise NotProven(f"rules that cannot be looked at: {'; '.join(broken)}")
    if wrong := scraper.firing() - {alert for script in scripts for alert in script.fires}:
        raise NotProven(f"these fired in the time of the jobs themselves: {', '.join(sorted(wrong))}")
