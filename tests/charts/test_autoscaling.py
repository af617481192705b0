"""The autoscalers that the chart has as examples: their metrics are those that a run exports, and Prometheus takes their queries.

`tests/operator/cluster/test_autoscalers_on_api_server.py` applies them.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tools.observability.catalogue import declared, values_of

from servers import ROOT, lacking

FOLDER = ROOT / "charts" / "shoal" / "files" / "autoscaling"
SERIES = re.compile(r"\b(shoal_\w+)(?:\{([^}]*)\})?")
MATCHERS = "<<.LabelMatchers>>"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def rules() -> list[dict[str, Any]]:
    [found] = [each["rules"]["external"] for each in documents("hpa.yaml") if "rules" in each]
    return list(found)


def queries() -> list[str]:
    """Every PromQL expression of both files, as Prometheus gets it."""
    by_keda = [each["metadata"]["query"] for found in documents("keda.yaml") for each in found["spec"]["triggers"]]
    return [*by_keda, *(each["metricsQuery"].replace(MATCHERS, 'run="arithmetic"') for each in rules())]


def test_every_series_is_one_that_the_orchestrator_exports() -> None:
    exported = {each.name: each for each in declared()}
    looked = 0
    for query in queries():
        for name, matchers in SERIES.findall(query):
            assert "orchestrator" in exported[name].parts, name
            for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
                if label not in ("namespace", "run"):  # of the target
                    assert label in exported[name].labels
                    assert value in values_of("orchestrator", name, label)
            looked += 1
    assert looked >= 6
    assert {each["seriesQuery"] for each in rules()} <= set(exported)


def test_every_external_metric_is_one_that_the_adapters_rules_serve() -> None:
    served = {each.get("name", {}).get("as", each["seriesQuery"]) for each in rules()}
    asked = {
        metric["external"]["metric"]["name"]
        for each in documents("hpa.yaml")
        if each.get("kind") == "HorizontalPodAutoscaler"
        for metric in each["spec"]["metrics"]
    }
    assert asked == served


def test_both_scale_the_same_objects_between_the_same_bounds() -> None:
    def bounds(name: str, low: str, high: str) -> dict[str, tuple[int, int]]:
        specs = [each["spec"] for each in documents(name) if "spec" in each]
        return {spec["scaleTargetRef"]["name"]: (spec[low], spec[high]) for spec in specs}

    assert bounds("hpa.yaml", "minReplicas", "maxReplicas") == bounds("keda.yaml", "minReplicaCount", "maxReplicaCount")


def test_what_they_scale_has_a_scale() -> None:
    """`test_drift_on_api_server.py` shows what an autoscaler does with it."""
    crds = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    scaled = {crd["spec"]["names"]["kind"] for crd in crds if "scale" in crd["spec"]["versions"][0]["subresources"]}
    targets = [
        each["spec"]["scaleTargetRef"]
        for name in ("hpa.yaml", "keda.yaml")
        for each in documents(name)
        if "spec" in each
    ]
    assert {each["kind"] for each in targets} == {"InferencePool", "Validator"} <= scaled


def test_prometheus_takes_the_queries(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        lacking("promtool", "run `make setup`")
    recorded = [{"record": f"tried:{number}", "expr": query} for number, query in enumerate(queries())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "tried", "rules": recorded}]}))
    done = subprocess.run([str(program), "check", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
