"""A real Prometheus with the chart's own rules that scrapes processes of a test. Its targets follow a function; `for` of rules is seconds here."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_server import program

from servers import PLAIN, ROOT, Loopback, Server

SCRAPE_SECONDS = 5
FOR_SECONDS = 10
RATE_WINDOW = "2m"
SHOWN = "1h"

Targets = Callable[[], Sequence[tuple[str, Mapping[str, str]]]]
"""Address with port, and the labels that the chart's PodMonitors would give it."""


class ScrapingPrometheus:
    """Runs until `stop`. `targets` is called each second, from a thread."""

    def __init__(self, folder: Path, loopback: Loopback, targets: Targets) -> None:
        self._folder, self._targets = folder, targets
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
        """Answer to an instant query, Grafana's variables filled in as for "All"."""
        filled = query
        for variable, value in (
            ("$__rate_interval", RATE_WINDOW),
            ("$__range", SHOWN),
            ("$namespace", ".+"),
            ("$run", ".+"),
        ):
            filled = filled.replace(variable, value)
        answer = httpx.post(f"{self.url}/api/v1/query", data={"query": filled}, **PLAIN, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Labels of what fires under this name."""
        found = httpx.get(f"{self.url}/api/v1/alerts", **PLAIN, timeout=30).json()["data"]["alerts"]
        return [each["labels"] for each in found if each["state"] == "firing" and each["labels"]["alertname"] == alert]

    def _follow(self) -> None:
        while not self._ended.wait(1.0):
            self._write_targets()

    def _write_targets(self) -> None:
        partial = self._folder / "targets.partial"
        partial.write_text(
            json.dumps([{"targets": [place], "labels": dict(labels)} for place, labels in self._targets()])
        )
        partial.replace(self._folder / "targets.json")
