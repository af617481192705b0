"""A real run scraped by a real Prometheus with the chart's own rules: every panel has data, alerts fire when parts stop answering, and clear.

Whole systems are slow to start, so this is part of `make soak`. Rules are those of the chart but for `for`, which is seconds here.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scraping import ScrapingPrometheus
from tools.observability.dashboards import BOARDS
from tools.observability.panels import VERSION_QUERY, built

from lying_worker import LIE
from servers import PLAIN, ROOT, Loopback, wait_until

sys.path.insert(0, str(ROOT / "tests" / "system"))

from local_system import EXAMPLE, SMALL, TWO_SOURCES, LocalSystem, write_manifest

from shoal.orchestrator.metrics import NODE_METRICS_PORT
from shoal.report.prometheus import read_prometheus
from shoal.report.sampler import METRIC_PORTS
from shoal_operator.children.names import PORTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

FIRE_SECONDS = 120.0
DATA_SECONDS = 300.0
STRANGER = "stranger"
WAITS = "Waits"
NEVER = "shoal_validator_turn_reward_faults_total"
"""A right environment gives no wrong rewards of turns, and a run without credit by turns none at all."""

SCORED: dict[str, Any] = {
    "everyVersions": 1,
    "share": 0.5,
    "benchmarks": [{"name": "sums", "tasks": {"environment": "arithmetic", "count": 4}, "samples": 2}],
}
"""Versions are scored, on as little as will do."""


class Watched(ScrapingPrometheus):
    """The run, and the Prometheus that scrapes it: its targets follow the pods."""

    def __init__(self, system: LocalSystem, folder: Path, loopback: Loopback) -> None:
        self.system = system
        super().__init__(folder, loopback, self._pods)

    def _pods(self) -> list[tuple[str, dict[str, str]]]:
        """As the chart's PodMonitors would: one target a container, with the labels that rules and dashboards go by."""
        return [
            (
                f"{pod.address}:{port}",
                {
                    "namespace": "local", "run": self.system.run, "component": pod.component,
                    "container": container.name, "pod": pod.name,
                },
            )
            for pod in self.system.running_pods()
            for container in pod.containers
            for port in (METRIC_PORTS.get(container.name), NODE_METRICS_PORT if container.name == "orchestrator" else None)
            if port is not None and pod.address
        ]  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("live")
    system = LocalSystem(
        write_manifest(EXAMPLE, folder / "run.yaml", name="watched", tasks=TWO_SOURCES, evaluation=SCORED, **SMALL),
        folder / "runs",
    )
    system.start()
    made = None
    try:
        system.until("the base model is announced", lambda: system.latest_version() >= 0, 600)
        made = Watched(system, folder, loopback)
        system.until("two steps are trained", lambda: system.latest_version() >= 2, 600)
        yield made
    finally:
        if made is not None:
            made.stop()
        system.stop()


def panels() -> list[tuple[str, str, str]]:
    """(board, title, query) of every panel of the boards of runs."""
    return [
        (board.uid, panel["title"], target["expr"])
        for board in BOARDS
        if board.of_runs
        for panel in built(board)["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    ]


def test_every_panel_has_data_of_the_run(watched: Watched) -> None:
    """A worker lies and is evicted, a relay fails in the middle of a version, somebody without a token asks it: so nothing is left empty."""
    system = watched.system
    system.add_pool(STRANGER, [sys.executable, "-c", LIE])
    system.until("the liar is evicted", lambda: evicted(system) > 0, 400)
    system.remove_pool(STRANGER)
    empty = {(board, title, query) for board, title, query in panels() if title != WAITS and NEVER not in query}
    deadline = time.monotonic() + DATA_SECONDS
    while empty and time.monotonic() < deadline:  # rates want two scrapes, and some things happen once a step
        fail_a_relay(system)
        ask_without_a_token(system)
        system.advance(1)
        empty = {each for each in empty if not watched.ask(each[2])}
    assert empty == set()


def test_what_processes_wait_for_is_told(watched: Watched) -> None:
    """The panel is empty while nobody waits, so what it reads is looked at: the trainer has waited for a batch, and said so."""
    [query] = [query for _, title, query in panels() if title == WAITS]
    watched.ask(query)
    told = watched.ask(f"max_over_time({query.removesuffix(' > 0')}[1h]) > 0")
    assert {"trainer"} <= {each["metric"]["container"] for each in told}
    assert all(each["metric"]["for_what"] for each in told)


def test_a_new_version_is_marked(watched: Watched) -> None:
    watched.system.advance(1)
    [found] = wait_until("the version's mark", lambda: watched.ask(VERSION_QUERY) or None, 90.0)
    assert found["metric"] == {"namespace": "local", "run": "watched"}


def evicted(system: LocalSystem) -> int:
    found = system.progress()
    return 0 if found is None else found.nodes.get("Evicted", 0)


def fail_a_relay(system: LocalSystem) -> None:
    """Kill nginx of a relay while a version is on its way, so that whoever fetches from it has to go to the other one."""
    newest = system.latest_version()
    system.until("a version is on its way", lambda: len(system.metrics()) > newest)
    system.kill("relay", "nginx")


def ask_without_a_token(system: LocalSystem) -> None:
    """As a passer-by would, of the relay that is not failing."""
    address = system.pods("relay")[1].address
    answer = httpx.get(f"http://{address}:{PORTS['nginx']}/versions/index.json", **PLAIN, timeout=30)
    assert answer.status_code == 401


def test_no_alert_fires_that_says_that_something_is_down(watched: Watched) -> None:
    wait_until("every target to answer", lambda: bool(watched.ask("up")) and not watched.ask("up == 0"), 120.0)
    # Not ShoalDiskFilling: it speaks of this machine's disk, which may well be filling.
    for alert in ("ShoalOrchestratorGone", "ShoalPartDown", "ShoalRelayUnreachable", "ShoalNoProgress"):
        wait_until(f"{alert} to be quiet", lambda alert=alert: not watched.firing(alert), 60.0)


@pytest.mark.parametrize(
    ("component", "container", "alert", "others"),
    [
        ("validator", "validator", "ShoalPartDown", ("ShoalRelayUnreachable", "ShoalOrchestratorGone")),
        ("relay", "sync", "ShoalRelayUnreachable", ("ShoalPartDown", "ShoalOrchestratorGone")),
        ("orchestrator", "orchestrator", "ShoalOrchestratorGone", ("ShoalRelayUnreachable",)),
    ],
)
def test_a_part_that_stops_answering_is_alerted_and_the_alert_clears(
    watched: Watched, component: str, container: str, alert: str, others: tuple[str, ...]
) -> None:
    pid = watched.system.until(f"{container} runs", lambda: watched.system.pid(component, container))
    pod = watched.system.pods(component)[0].name
    wait_until(f"{alert} to be quiet before", lambda: not watched.firing(alert), 120.0)
    os.kill(pid, signal.SIGSTOP)
    try:
        found = wait_until(f"{alert} to fire", lambda: watched.firing(alert) or None, FIRE_SECONDS)
        assert {each["run"] for each in found} == {"watched"}
        assert all(each.get("pod", pod) == pod for each in found)
        assert [each for each in others if watched.firing(each)] == []
    finally:
        with contextlib.suppress(ProcessLookupError):  # its supervisor may have begun it anew
            os.kill(pid, signal.SIGCONT)
    wait_until(f"{alert} to clear", lambda: not watched.firing(alert), 180.0)
    watched.system.advance(1)


def test_a_report_from_prometheus_has_the_work_of_every_part(watched: Watched) -> None:
    now = time.time()
    readings = read_prometheus(watched.url, "watched", now - 3600, now)
    parts = {record.container for record in readings.records if record.kind == "sample" and record.metrics}
    assert {"trainer", "worker", "validator", "sync"} <= parts
    assert readings.steps_total == SMALL["steps"]
