"""Alerts of the chart: promtool accepts them, each fires when it should and keeps quiet when it should, and each has a runbook."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES
from prometheus_server import promtool

from servers import ROOT

ALERTS = ROOT / "charts" / "shoal" / "files" / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", ALERTS)


def test_promtool_finds_a_rule_that_is_wrong(tmp_path: Path) -> None:
    # So that the test above says something.
    broken = tmp_path / "alerts.yaml"
    broken.write_text(ALERTS.read_text().replace("== 1", "=== 1", 1))
    assert "parse error" in promtool("check", "rules", broken, ok=False)


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    assert CASES.keys() == rules().keys()


@pytest.mark.parametrize("alert", sorted(CASES))
def test_an_alert_fires_when_it_should_and_keeps_quiet_when_it_should(alert: str, tmp_path: Path) -> None:
    rule = rules()[alert]
    severity = rule["labels"]["severity"]
    # Annotations are compared to the letter, numbers included: here it is about when an alert fires.
    without = {key: value for key, value in rule.items() if key != "annotations"}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [without]}]}))
    tests = []
    for case in CASES[alert]:
        for series, expected in (
            (case.firing, [{"exp_labels": {"severity": severity, **case.labels}}]),
            (case.quiet, []),
        ):
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    "alert_rule_test": [
                        {"eval_time": f"{case.at_minutes}m", "alertname": alert, "exp_alerts": expected}
                    ],
                }
            )
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}, width=1000)
    )
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yaml")


@pytest.mark.parametrize("alert", sorted(CASES))
def test_an_alert_says_whom_it_concerns_and_has_a_runbook(alert: str) -> None:
    rule = rules()[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert "{{ $labels." in rule["annotations"]["summary"]
    assert rule["annotations"]["runbook_url"] == f"@runbooks@/{alert}.md"
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert re.findall(r"^#+ (.*)", text, re.M) == [alert, "What it means", "What to look at", "What to do"]


def test_the_index_of_runbooks_names_each_once() -> None:
    named = re.findall(r"\]\((\w+)\.md\)", (RUNBOOKS / "README.md").read_text())
    assert sorted(named) == sorted(CASES)
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*CASES, "README"}
