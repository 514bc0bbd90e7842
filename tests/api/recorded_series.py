"""Real metrics pages of jobs that a test plays, recorded as Prometheus would, and given to `promtool test rules`.

The pages are those of the real exporter on a real leader with a real machine; the hosts and the clock are the test's.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "understudy.rules.yml"
INTERVAL = 30  # seconds between two scrapes
_GONE = "stale"  # as Prometheus marks a series that a target does not have any more
_FIRING = 'group by (alertname, training_job) (ALERTS{alertstate="firing"})'
_EVER = 'group by (alertname, training_job) (count_over_time(ALERTS{alertstate="firing"}[7d]))'
Alert = tuple[str, str]
"""Its name and the training job; the job is empty for an alert about a target."""


def promtool(*arguments: str) -> None:
    """Not skipped: rules that nobody has run are worth nothing."""
    if shutil.which("promtool") is None:
        pytest.fail("promtool is not installed; it comes with the package prometheus")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Recording:
    """`expect` notes which alerts must fire at this moment; no other may fire at any other time."""

    def __init__(self) -> None:
        self._series: dict[str, list[str]] = {}
        self._count = 0
        self._checks: list[tuple[int, str, set[Alert]]] = []
        self._expected: set[Alert] = set()

    def scrape(self, pages: Mapping[str, bytes | None]) -> None:
        """One page for each target; None: it does not answer."""
        found: dict[str, str] = {}
        for instance, page in pages.items():
            target = {"job": "understudy", "instance": instance}
            found[_series("up", target)] = "0" if page is None else "1"
            for family in text_string_to_metric_families("" if page is None else page.decode()):
                for sample in family.samples:
                    found[_series(sample.name, {**target, **sample.labels})] = repr(float(sample.value))
        for name in found.keys() | self._series.keys():
            values = self._series.setdefault(name, ["_"] * self._count)
            values.append(found.get(name, "_" if values and values[-1] in ("_", _GONE) else _GONE))
        self._count += 1

    def expect(self, *alerts: Alert) -> None:
        self._checks.append((self._now, _FIRING, set(alerts)))
        self._expected |= set(alerts)

    @property
    def _now(self) -> int:
        return (self._count - 1) * INTERVAL

    def judge(self, folder: Path) -> None:
        checks = [*self._checks, (self._now, _EVER, self._expected)]
        test = {
            "interval": f"{INTERVAL}s",
            "input_series": [
                {"series": name, "values": " ".join(values)} for name, values in sorted(self._series.items())
            ],
            "promql_expr_test": [
                {
                    "expr": expression,
                    "eval_time": f"{at}s",
                    "exp_samples": [{"labels": _labels(alert), "value": 1} for alert in sorted(alerts)],
                }
                for at, expression, alerts in checks
            ],
        }
        file = folder / "played.json"  # JSON is YAML
        whole = {"rule_files": [str(RULES)], "evaluation_interval": f"{INTERVAL}s", "tests": [test]}
        file.write_text(json.dumps(whole))
        promtool("test", "rules", str(file))


def _labels(alert: Alert) -> str:
    name, training_job = alert
    return "{" + f'alertname="{name}"' + (f', training_job="{training_job}"' if training_job else "") + "}"


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels.items())) + "}"
