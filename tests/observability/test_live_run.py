"""A real run scraped by a real Prometheus with the chart's own rules: every panel has data, alerts fire when parts stop answering, and clear.

Whole systems are slow to start, so this is part of `make soak`. Rules are those of the chart but for `for`, which is seconds here.
"""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_server import program
from tools.observability.dashboards import BOARDS
from tools.observability.panels import built

from servers import ROOT, Loopback, Server, wait_until

sys.path.insert(0, str(ROOT / "tests" / "system"))

from local_system import EXAMPLE, SMALL, LocalSystem, write_manifest

from shoal.protocol.metrics import NODE_METRICS_PORT
from shoal.report.prometheus import read_prometheus
from shoal.report.sampler import METRIC_PORTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

SCRAPE_SECONDS = 5
FOR_SECONDS = 10
FIRE_SECONDS = 120.0
RATE_WINDOW = "2m"

EMPTY: dict[str, str] = {
    "Rejected files by reason": "nobody cheats",
    "Reject rate": "nobody cheats",
    "Failed tries a second": "every relay answers",
    "Tokens refused": "every token is good",
}
"""Panels that a run on one machine has nothing for, and why. The operator's board is left out: nothing of an operator's process runs here."""


class Watched:
    """The run, and the Prometheus that scrapes it: its targets follow the pods."""

    def __init__(self, system: LocalSystem, folder: Path, loopback: Loopback) -> None:
        self.system = system
        self._folder = folder
        self._ended = threading.Event()
        rules = yaml.safe_load((ROOT / "charts/shoal/files/alerts.yaml").read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule["for"] = f"{FOR_SECONDS}s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        configuration = {
            "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "run", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "2s"}]}],
        }  # fmt: skip
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self._write_targets()
        address = loopback.address()
        port = Loopback.port(address)
        command = [
            program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}:{port}", "--log.level=warn",
        ]  # fmt: skip
        self._server = Server(command, address, port, folder)
        self._server.start()
        self.url = f"http://{address}:{port}"
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._server.stop()

    def ask(self, query: str) -> list[dict[str, Any]]:
        filled = query.replace("$__rate_interval", RATE_WINDOW).replace("$namespace", ".+").replace("$run", ".+")
        answer = httpx.post(f"{self.url}/api/v1/query", data={"query": filled}, trust_env=False, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]  # type: ignore[no-any-return]

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Labels of what fires under this name."""
        found = httpx.get(f"{self.url}/api/v1/alerts", trust_env=False, timeout=30).json()["data"]["alerts"]
        return [each["labels"] for each in found if each["state"] == "firing" and each["labels"]["alertname"] == alert]

    def _follow(self) -> None:
        while not self._ended.wait(1.0):
            self._write_targets()

    def _write_targets(self) -> None:
        """As the chart's PodMonitors would: one target a container, with the labels that rules and dashboards go by."""
        targets = [
            {
                "targets": [f"{pod.address}:{port}"],
                "labels": {
                    "namespace": "local", "run": self.system.run, "component": pod.component,
                    "container": container.name, "pod": pod.name,
                },
            }
            for pod in self.system.running_pods()
            for container in pod.containers
            for port in (METRIC_PORTS.get(container.name), NODE_METRICS_PORT if container.name == "orchestrator" else None)
            if port is not None and pod.address
        ]  # fmt: skip
        partial = self._folder / "targets.partial"
        partial.write_text(json.dumps(targets))
        partial.replace(self._folder / "targets.json")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("live")
    system = LocalSystem(write_manifest(EXAMPLE, folder / "run.yaml", name="watched", **SMALL), folder / "runs")
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


def test_every_panel_has_data_of_the_run_or_is_named_as_empty(watched: Watched) -> None:
    deadline = time.monotonic() + 180
    while True:  # rates want two scrapes, and some things happen once a step
        empty = {title: query for _, title, query in panels() if not watched.ask(query)}
        if empty.keys() <= EMPTY.keys() or time.monotonic() > deadline:
            break
        watched.system.advance(1)
    assert {title: query for title, query in empty.items() if title not in EMPTY} == {}


def test_no_alert_fires_that_says_that_something_is_down(watched: Watched) -> None:
    wait_until("every target to answer", lambda: bool(watched.ask("up")) and not watched.ask("up == 0"), 120.0)
    for alert in (
        "ShoalOrchestratorGone",
        "ShoalPartDown",
        "ShoalRelayUnreachable",
        "ShoalDiskFilling",
        "ShoalNoProgress",
    ):
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


def test_names_of_empty_panels_are_panels() -> None:
    titles = {title for _, title, _ in panels()}
    assert EMPTY.keys() <= titles
    assert not [title for title in EMPTY if re.search(r"^\s|\s$", title)]
