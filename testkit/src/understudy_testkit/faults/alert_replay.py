"""Series of metrics through `promtool test rules`: which alerts fire on them and when, and that no other one ever does.

Knows: the notation of promtool and the rules as they are deployed. Does not know: where the series come from (a
recording of real runs, or pages of jobs that a test plays).
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy_testkit.faults.assertions import NotProven

ABSENT = "_"  # no sample
GONE = "stale"  # as Prometheus marks a series that a target does not have any more
_FIRING = 'ALERTS{alertstate="firing"}'
_EVER = 'count_over_time(ALERTS{alertstate="firing"}[7d])'


@dataclass(frozen=True, slots=True, order=True)
class Alert:
    """`training_job` and `instance` are empty where the alert does not carry them."""

    name: str
    training_job: str = ""
    instance: str = ""

    def labels(self) -> str:
        return written(
            {"alertname": self.name, **_kept({"training_job": self.training_job, "instance": self.instance})}
        )


@dataclass(frozen=True, slots=True)
class Check:
    """Exactly these alerts fire at the sample with this number."""

    sample: int
    alerts: frozenset[Alert] = frozenset()


def why_not() -> str | None:
    return None if shutil.which("promtool") else "promtool is not installed; it comes with the package prometheus"


def judge(
    folder: Path,
    rules: Path,
    series: Mapping[str, Sequence[str]],
    interval: int,
    checks: Iterable[Check],
    *,
    by_instance: bool = True,
) -> None:
    """`series`: values as promtool writes them, a sample every `interval` seconds. Besides at its checks, no alert may
    ever fire that no check expects. `by_instance`: also for which target. Raises `NotProven` with promtool's words."""
    checks = tuple(checks)
    last = max(map(len, series.values())) - 1
    ever = Check(last, frozenset(alert for check in checks for alert in check.alerts))
    test = {
        "interval": f"{interval}s",
        "input_series": [{"series": name, "values": " ".join(values)} for name, values in sorted(series.items())],
        "promql_expr_test": [
            *(_question(_grouped(_FIRING, by_instance), check, interval) for check in checks),
            _question(_grouped(_EVER, by_instance), ever, interval),
        ],
    }
    file = folder / "replayed.json"  # JSON is YAML
    whole = {"rule_files": [str(rules)], "evaluation_interval": f"{interval}s", "tests": [test]}
    file.write_text(json.dumps(whole))
    promtool("test", "rules", str(file))


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotProven(done.stdout + done.stderr)


def written(labels: Mapping[str, str], name: str = "") -> str:
    """A series as promtool wants it."""
    return name + "{" + ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels.items())) + "}"


def _grouped(expression: str, by_instance: bool) -> str:
    return f"group by (alertname, training_job{', instance' if by_instance else ''}) ({expression})"


def _question(expression: str, check: Check, interval: int) -> dict[str, object]:
    samples = [{"labels": alert.labels(), "value": 1} for alert in sorted(check.alerts)]
    return {"expr": expression, "eval_time": f"{check.sample * interval}s", "exp_samples": samples}


def _kept(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if value}
