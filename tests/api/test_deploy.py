"""The alert rules and the dashboard speak of metrics that exist, with labels that they have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.api.stage import Stage

from understudy.api.naming import LABEL

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "understudy.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "understudy.json"
_SELECTOR = re.compile(r"(understudy_[a-z_]+)(?:\{([^}]*)\})?")


def exported(folder: Path) -> dict[str, set[str]]:
    """Every name on the page with its labels. Histograms and counters have several names each."""
    stage = Stage(folder)
    stage.begin()
    stage.api.metrics.action("migrate", "accepted")
    stage.api.metrics.alert("monitor", "noted")
    stage.api.metrics.refused("token")
    found: dict[str, set[str]] = {
        "understudy_agent_messages_refused": {"where", "kind", LABEL},
        "understudy_certificate_expires_seconds": {"file", LABEL},
    }
    for line in stage.api.metrics.page().decode().splitlines():
        described = re.match(r"# TYPE (\S+) (\S+)", line)
        if described is not None and described[2] == "histogram":
            for ending, labels in (("_bucket", {"phase", "le"}), ("_sum", {"phase"}), ("_count", {"phase"})):
                found[described[1] + ending] = labels | {LABEL}
        sample = re.match(r"(understudy_[a-z_]+)(?:\{([^}]*)\})? ", line)
        if sample is not None:
            found.setdefault(sample[1], set()).update(re.findall(r'(\w+)="', sample[2] or ""))
    return found


def expressions() -> Iterator[str]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    yield dashboard["annotations"]["list"][0]["expr"]
    yield dashboard["templating"]["list"][1]["query"]["query"]


def test_only_metrics_that_exist_are_used_and_every_one_is(tmp_path: Path) -> None:
    known, used = exported(tmp_path), set[str]()
    for expression in expressions():
        for name, selector in _SELECTOR.findall(expression):
            assert name in known, f"{name} is not exported: {expression}"
            labels = set(re.findall(r"(\w+)\s*=", selector)) - {"instance", "job"}
            assert labels <= known[name], f"{name} has no {labels - known[name]}: {expression}"
            used.add(name)
    assert {name for name in known if not name.endswith("_created")} == used


def test_every_metric_has_the_name_of_its_job(tmp_path: Path) -> None:
    assert {name for name, labels in exported(tmp_path).items() if LABEL not in labels} == set()


def test_every_alert_is_by_training_job_and_has_a_section_in_the_runbook() -> None:
    runbook = (DEPLOY.parent / "docs" / "runbook.md").read_text()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert f"({LABEL})" in rule["expr"] or f"({LABEL}, " in rule["expr"], rule["alert"]
            assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
            assert f"\n## {rule['alert']}\n" in runbook, rule["alert"]


def test_names_follow_the_conventions(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.begin()
    for name, kind in re.findall(r"# TYPE (\S+) (\S+)", stage.api.metrics.page().decode()):
        assert name.startswith("understudy_"), name
        if not name.endswith("_created"):
            assert name.endswith("_total") == (kind == "counter"), name


def test_every_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"]
