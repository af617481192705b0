"""The operator's dashboard and alerts against a real operator: it reconciles runs on a real API server and a real Prometheus scrapes it.

Prometheus needs a minute for rates, so this is part of `make soak`.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_story import Story
from fault_proxy import Asked, FaultProxy
from operator_process import OPERATOR_NAMESPACE, PATIENT, OperatorProcess, StartOperator

from servers import ROOT, Loopback, wait_until

sys.path.insert(0, str(ROOT / "tests" / "observability"))

from scraping import ScrapingPrometheus
from tools.observability.dashboards import OPERATOR
from tools.observability.panels import built

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

DATA_SECONDS = 120.0


@pytest.fixture
def observed(
    story: Story, proxy: FaultProxy, start_operator: StartOperator, loopback: Loopback, tmp_path: Path
) -> Iterator[tuple[OperatorProcess, ScrapingPrometheus]]:
    """An operator that talks through the proxy and has made a run, and the Prometheus that scrapes it with the labels of the chart's PodMonitor."""
    operator = start_operator(server=proxy.url, lease_seconds=PATIENT)
    labels = {"namespace": OPERATOR_NAMESPACE, "container": "operator", "pod": operator.name}
    folder = tmp_path / "prometheus"
    folder.mkdir()
    prometheus = ScrapingPrometheus(folder, loopback, lambda: [(f"{operator.address}:{operator.port}", labels)])
    try:
        story.running()
        yield operator, prometheus
    finally:
        prometheus.stop()


def queries() -> dict[str, str]:
    """PromQL of the operator's board by panel and query."""
    return {
        f"{panel['title']} / {target['refId']}": target["expr"]
        for panel in built(OPERATOR)["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    }


def test_every_panel_has_data_of_a_real_operator_and_its_alerts_fire_and_clear(
    story: Story, proxy: FaultProxy, observed: tuple[OperatorProcess, ScrapingPrometheus]
) -> None:
    operator, prometheus = observed
    wait_until("the operator to lead", lambda: prometheus.ask("leader_election_master_status == 1"), 60.0, 1.0)
    assert prometheus.firing("ShoalOperatorFailing") == []

    def refused(asked: Asked) -> int | None:
        return 500 if asked.method == "PATCH" and "leases" not in asked.path else None

    proxy.fault = refused
    replicas = 2

    def failing() -> bool:
        """Edits go on, so that reconciles do."""
        nonlocal replicas
        replicas = 5 - replicas
        story.edit(validator={"replicas": replicas})
        return bool(prometheus.firing("ShoalOperatorFailing"))

    wait_until("ShoalOperatorFailing to fire", failing, 180.0, 2.0)
    empty = queries()

    def all_answered() -> bool:
        failing()
        for title in [title for title, query in empty.items() if prometheus.ask(query)]:
            del empty[title]
        return not empty

    try:
        wait_until("every query of the board to have data", all_answered, DATA_SECONDS, 2.0)
    finally:
        assert empty == {}
    proxy.fault = None
    story.edit(validator={"replicas": 1})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 1)

    assert prometheus.firing("ShoalOperatorWithoutLeader") == []
    assert operator.process is not None
    operator.process.send_signal(signal.SIGSTOP)
    try:
        [found] = wait_until("its silence", lambda: prometheus.firing("ShoalOperatorWithoutLeader") or None, 120.0, 1.0)
        assert found["namespace"] == OPERATOR_NAMESPACE
    finally:
        operator.process.send_signal(signal.SIGCONT)
    wait_until("the alert to clear", lambda: not prometheus.firing("ShoalOperatorWithoutLeader"), 120.0, 1.0)


def test_a_query_for_an_unknown_metric_has_no_data(
    observed: tuple[OperatorProcess, ScrapingPrometheus],
) -> None:
    # So that having data says something.
    _, prometheus = observed
    known = 'controller_runtime_reconcile_total{controller="trainingrun"}'
    wait_until("a scrape", lambda: prometheus.ask(known), 60.0, 1.0)
    assert prometheus.ask(known.replace("trainingrun", "trainingruns")) == []
