"""Real metrics pages of jobs that a test plays, recorded as Prometheus would, and given to `promtool test rules`.

The pages are those of the real exporter on a real leader with a real machine; the hosts and the clock are the test's.
"""

from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from understudy_testkit.faults import alert_replay
from understudy_testkit.faults.alert_replay import ABSENT, GONE, Alert, Check, written

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "understudy.rules.yml"
INTERVAL = 30  # seconds between two scrapes


class Recording:
    """`expect` notes which alerts must fire at this moment; no other may fire at any other time."""

    def __init__(self) -> None:
        self._series: dict[str, list[str]] = {}
        self._count = 0
        self._checks: list[Check] = []

    def scrape(self, pages: Mapping[str, bytes | None]) -> None:
        """One page for each target; None: it does not answer."""
        found: dict[str, str] = {}
        for instance, page in pages.items():
            target = {"job": "understudy", "instance": instance}
            found[written(target, "up")] = "0" if page is None else "1"
            for family in text_string_to_metric_families("" if page is None else page.decode()):
                for sample in family.samples:
                    found[written({**target, **sample.labels}, sample.name)] = repr(float(sample.value))
        for name in found.keys() | self._series.keys():
            values = self._series.setdefault(name, [ABSENT] * self._count)
            values.append(found.get(name, ABSENT if values and values[-1] in (ABSENT, GONE) else GONE))
        self._count += 1

    def expect(self, *alerts: tuple[str, str]) -> None:
        """Each is the name and the training job, which is empty for an alert about a target."""
        expected = frozenset(Alert(name, training_job) for name, training_job in alerts)
        self._checks.append(Check(self._count - 1, expected))

    def judge(self, folder: Path) -> None:
        alert_replay.judge(folder, RULES, self._series, INTERVAL, self._checks, by_instance=False)
