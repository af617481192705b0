"""The catalogue of metrics: nothing that the code declares is missing, every label is bounded, and the generated files are those of the code."""

import ast
import re
from pathlib import Path

import pytest
from tools.observability.__main__ import files
from tools.observability.catalogue import LABELS, PARTS, VALUES, Declared, declared, families

from servers import ROOT
from shoal_operator.children.names import PORTS

MAKERS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum", "CounterMetricFamily", "GaugeMetricFamily"}
UNITS = (
    (r"^(Time|Age|How long|Wall-clock|Seconds)\b", "_seconds"),
    (r"^(Bytes|Size of the volume|Bytes that)\b", "_bytes"),
)


@pytest.fixture(scope="module")
def metrics() -> list[Declared]:
    return declared()


def modules_that_declare() -> set[str]:
    """Modules that call a class of prometheus-client which makes a metric, found in their text."""
    found = set()
    for folder in (ROOT / "workloads", ROOT / "operator"):
        for path in folder.rglob("*.py"):
            text = path.read_text()
            if "prometheus_client" not in text:
                continue
            tree = ast.parse(text)
            imported = {
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prometheus_client")
                for alias in node.names
            }
            called = {
                node.func.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            if MAKERS & imported & called:
                found.add(path.relative_to(folder).with_suffix("").as_posix().replace("/", "."))
    return found


def test_every_module_that_declares_a_metric_is_in_the_catalogue() -> None:
    assert {module for modules in PARTS.values() for module in modules} == modules_that_declare()


def test_every_module_of_the_catalogue_declares_something() -> None:
    assert [module for modules in PARTS.values() for module in modules if not families(module)] == []


def test_every_container_with_metrics_is_in_the_catalogue() -> None:
    assert {*PARTS} - {"operator", "collector"} == {*PORTS} - {"redis", "nginx", "tracker", "ui", "lighthouse"}


def test_every_label_is_described_and_bounded(metrics: list[Declared]) -> None:
    used = {label for metric in metrics for label in metric.labels}
    assert used == LABELS.keys()
    assert all(meaning and bound for meaning, bound in LABELS.values())


def test_values_of_labels_are_of_metrics_that_are_there(metrics: list[Declared]) -> None:
    labels = {(metric.name.removesuffix("_total"), label) for metric in metrics for label in metric.labels}
    assert {key for key in VALUES if key[0] not in PARTS} <= labels


def test_names_carry_the_unit_of_what_they_measure(metrics: list[Declared]) -> None:
    wrong = [
        metric.name
        for metric in metrics
        for words, unit in UNITS
        if re.match(words, metric.help) and unit not in metric.name
    ]
    assert wrong == []
    assert [metric.name for metric in metrics if not re.fullmatch(r"[a-z][a-z0-9_]+", metric.name)] == []


def test_help_is_a_sentence(metrics: list[Declared]) -> None:
    assert [metric.name for metric in metrics if not re.match(r"[A-Z0-9].*\.$", metric.help, re.S)] == []


def test_one_name_in_two_modules_must_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.training import handover

    monkeypatch.setattr(handover.IN_FLIGHT_SECONDS, "_name", "shoal_trainer_step")
    with pytest.raises(ValueError, match="shoal_trainer_step is declared twice"):
        declared()


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            "docs/metrics.md",
            *(f"charts/shoal/dashboards/{path.name}" for path in (ROOT / "charts/shoal/dashboards").iterdir()),
        }
    ),
)
def test_generated_files_are_those_of_the_code(name: str) -> None:
    assert (ROOT / name).read_text() == _generated()[name], "run `make observability`"


def test_nothing_generated_is_missing() -> None:
    there = {
        Path("docs/metrics.md"),
        *(path.relative_to(ROOT) for path in (ROOT / "charts/shoal/dashboards").iterdir()),
    }
    assert there == {Path(name) for name in _generated()}


_made: dict[str, str] = {}


def _generated() -> dict[str, str]:
    if not _made:
        _made.update(files())
    return _made
