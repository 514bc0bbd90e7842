"""A real Prometheus that scrapes the APIs of jobs and evaluates the deployed alert rules, to be read back."""

import contextlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_testkit.faults.monitors import process, wait_until_ready
from understudy_testkit.faults.recorded_days import Scraped
from understudy_testkit.ports import free_ports

INTERVAL = 1  # seconds between two scrapes, and between two looks at the rules
_JOB = "understudy"
_SETTINGS = """\
global:
  scrape_interval: {interval}s
  scrape_timeout: {interval}s
  evaluation_interval: {interval}s
rule_files: [{rules}]
scrape_configs:
  - job_name: {job}
    static_configs: [{{targets: {targets}}}]
"""


@dataclass(frozen=True, slots=True)
class Scraper:
    port: int

    def scraped(self, name: str = "") -> list[Scraped]:
        """Everything, or the series of one name, sample by sample as it was taken."""
        found = self._ask("query", query=f'{name}{{job="{_JOB}"}}[1d]')
        return [_series(one) for one in found["result"]]

    def firing(self) -> set[str]:
        """The names of the alerts that fire now, in the time of the job itself."""
        return {alert["labels"]["alertname"] for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"}

    def broken_rules(self) -> list[str]:
        """Those that could not be looked at, with Prometheus' own words."""
        rules = [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]
        return [f"{rule['name']}: {rule.get('lastError', '')}" for rule in rules if rule["health"] == "err"]

    def _ask(self, what: str, **words: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=30.0) as answer:
            return json.load(answer)["data"]


def _series(one: dict[str, Any]) -> Scraped:
    labels = dict(one["metric"])
    return Scraped(labels.pop("__name__"), labels, [(float(at), str(value)) for at, value in one["values"]])


@contextlib.contextmanager
def scraping(folder: Path, rules: Path, targets: Sequence[str]) -> Iterator[Scraper]:
    """`targets`: HOST:PORT of each API."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = _SETTINGS.format(interval=INTERVAL, rules=rules, job=_JOB, targets=json.dumps(list(targets)))
    (folder / "prometheus.yml").write_text(settings)
    (port,) = free_ports(1)
    command = (
        *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        f"--web.listen-address=127.0.0.1:{port}",
    )
    output = folder / "prometheus.txt"
    with process(command, output):
        wait_until_ready(port, output)
        yield Scraper(port)
