"""Dashboards of the chart: every query names what the code declares, and a real Prometheus that holds a run's samples answers it with data."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_server import serve_blocks
from run_samples import openmetrics
from tools.observability.catalogue import Declared, declared
from tools.observability.dashboards import BOARDS
from tools.observability.panels import INCIDENT_QUERY, VERSION_QUERY, built

from servers import PLAIN, ROOT, Loopback, Server, wait_until

ALERTS = yaml.safe_load((ROOT / "charts/shoal/files/alerts.yaml").read_text())["groups"]
TARGET_LABELS = {"namespace", "run", "component", "container", "pod"}
METRIC = re.compile(r"\b(?:shoal|controller_runtime|workqueue|leader_election|rest_client)_\w+|\bup\b")
END_UNIX = int(time.time()) // 3600 * 3600


def documents() -> dict[str, dict[str, Any]]:
    return {board.uid: built(board) for board in BOARDS}


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """(place, PromQL) of every panel, annotation and alert."""
    found = [
        (f"{uid} / {panel['title']} / {target['refId']}", target["expr"])
        for uid, document in documents().items()
        for panel in panels(document)
        for target in panel["targets"]
    ]
    found += [
        (f"annotation / {each['name']}", each["expr"])
        for each in documents()["shoal-run-overview"]["annotations"]["list"]
        if each.get("expr")
    ]
    return found + [(f"alert / {rule['alert']}", rule["expr"]) for group in ALERTS for rule in group["rules"]]


QUERIES = queries()


@pytest.fixture(scope="module")
def metrics() -> dict[str, Declared]:
    return {series: metric for metric in declared() for series in metric.series}


@pytest.fixture(scope="module")
def prometheus(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serve_blocks(tmp_path_factory.mktemp("prometheus"), openmetrics(END_UNIX), loopback)

    def is_ready() -> bool:
        return httpx.get(f"http://{server.address}:{server.port}/-/ready", **PLAIN).status_code == 200

    wait_until("Prometheus to be ready", is_ready, 60.0)
    yield server
    server.stop()


def ask(server: Server, query: str) -> list[dict[str, Any]]:
    """Answer to an instant query ten seconds before the end of the samples."""
    answer = httpx.post(
        f"http://{server.address}:{server.port}/api/v1/query",
        data={"query": as_asked(query), "time": str(END_UNIX - 10)},
        **PLAIN,
    ).json()
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def as_asked(query: str) -> str:
    """The query with Grafana's variables filled in as for "All"."""
    for variable, value in (("$__rate_interval", "5m"), ("$__range", "2h"), ("$namespace", ".+"), ("$run", ".+")):
        query = query.replace(variable, value)
    return query


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_a_query_names_metrics_and_labels_that_the_code_declares(
    place: str, query: str, metrics: dict[str, Declared]
) -> None:
    named = set(METRIC.findall(query)) - {"up"}
    assert named <= metrics.keys()
    allowed = TARGET_LABELS | {"le"} | {label for name in named for label in metrics[name].labels}
    grouped = re.findall(r"\b(?:by|on|group_left|without)\s*\(([^)]*)\)", query)
    matched = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    used = {label.strip() for labels in grouped for label in labels.split(",") if label.strip()} | set(matched)
    assert used <= allowed


@pytest.mark.parametrize(
    ("place", "query"),
    [each for each in QUERIES if not each[0].startswith(("alert", "annotation"))],
    ids=lambda each: each[:60],
)
def test_a_panels_query_has_data_where_a_run_was_scraped(place: str, query: str, prometheus: Server) -> None:
    assert ask(prometheus, query), f"no data for {query}"


@pytest.mark.parametrize("query", [query for place, query in QUERIES if place.startswith("alert")])
def test_a_query_that_may_be_empty_runs(query: str, prometheus: Server) -> None:
    ask(prometheus, query)


def test_a_step_with_signs_that_act_is_marked_as_an_incident_and_a_version_that_stays_is_not_marked(
    prometheus: Server,
) -> None:
    [found] = ask(prometheus, INCIDENT_QUERY)
    assert found["metric"] == {"namespace": "research", "run": "arithmetic"}
    assert ask(prometheus, VERSION_QUERY) == []  # the live run has versions that are


def test_compute_over_the_time_shown_is_of_all_of_it(prometheus: Server) -> None:
    [panel] = [
        each for each in panels(documents()["shoal-run-overview"]) if each["title"] == "Inference to training compute"
    ]
    whole = panel["targets"][0]["expr"]
    assert whole.count("[$__range]") == 2
    [found] = ask(prometheus, whole)
    [expected] = ask(
        prometheus,
        "sum(increase(shoal_busy_seconds_total{container='worker',phase='generate'}[2h]))"
        " / sum(increase(shoal_busy_seconds_total{container='trainer'}[2h]))",
    )
    assert float(found["value"][1]) == pytest.approx(float(expected["value"][1]))
    assert float(found["value"][1]) < 1.0


def test_prometheus_has_nothing_for_a_metric_that_is_not_declared(prometheus: Server) -> None:
    # So that having data says something.
    assert ask(prometheus, 'shoal_nodes{run=~"$run",state="Healthy"}')
    assert ask(prometheus, 'shoal_nodes{run=~"$run",state="Sleeping"}') == []
    assert ask(prometheus, "shoal_trainer_gradient_norms") == []


def test_gauges_of_the_trainer_hold_what_its_code_made_of_a_step(prometheus: Server) -> None:
    for query, expected in (
        ("shoal_trainer_idle_ratio", 0.4), ("shoal_trainer_tokens_per_second", 200.0),
        ('shoal_trainer_phase_seconds{phase="update"}', 45.0), ("shoal_trainer_warnings", 2.0), ("shoal_trainer_step", 6.0),
    ):  # fmt: skip
        [found] = ask(prometheus, query)
        assert float(found["value"][1]) == pytest.approx(expected)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_dashboard_can_be_imported(board: Any) -> None:
    document = built(board)
    assert document["uid"] == board.uid
    assert len(document["uid"]) <= 40  # Grafana's limit
    assert document["schemaVersion"] >= 39
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))
    variables = [variable["name"] for variable in document["templating"]["list"]]
    assert variables == ["datasource", "namespace", "run"] if board.of_runs else ["datasource", "namespace"]
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(document)))
    assert used == set(variables)
    for panel in panels(document):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends)
    assert not overlapping(panels(document))


def overlapping(shown: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Titles of panels that lie on one another."""
    return [
        (one["title"], other["title"])
        for number, one in enumerate(shown)
        for other in shown[number + 1 :]
        if _meet(one["gridPos"], other["gridPos"], "x", "w") and _meet(one["gridPos"], other["gridPos"], "y", "h")
    ]


def _meet(one: dict[str, int], other: dict[str, int], start: str, length: str) -> bool:
    return one[start] < other[start] + other[length] and other[start] < one[start] + one[length]


def test_every_alert_is_linked_from_a_panel_and_every_link_leads_to_a_runbook() -> None:
    links = {
        Path(link["url"]).stem
        for document in documents().values()
        for panel in panels(document)
        for link in panel.get("links", [])
    }
    assert links == {rule["alert"] for group in ALERTS for rule in group["rules"]}


def test_dashboards_of_runs_mark_versions_and_incidents() -> None:
    for board in BOARDS:
        named = [each["name"] for each in built(board).get("annotations", {}).get("list", [])]
        assert named == (["New policy version", "Incident"] if board.of_runs else [])
