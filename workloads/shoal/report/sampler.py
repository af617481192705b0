"""Reads every part's metrics and CPU time each few seconds into `runs/<name>/metrics.jsonl`.

`Sampler` runs a thread beside `shoal up`. In: a function that gives the processes as they are now (pod, container, address, process id).
Out: appended lines (`records.py`). A part that does not answer costs a short time-out and its metrics of that reading; its CPU time comes from the
system anyway.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import structlog
from prometheus_client.parser import text_string_to_metric_families

from shoal.contracts.base import Contract
from shoal.report.records import SampleRecord, SessionRecord, metric_key
from shoal.transport.authorities import well_known

SAMPLE_SECONDS = 5.0
METRIC_PORTS = {
    "orchestrator": 8080, "discovery": 8081, "trainer": 9100, "publisher": 9101, "sync": 9102, "agent": 9103,
    "fetch": 9104, "worker": 9105, "validator": 9106, "runner": 9107,
}  # fmt: skip
"""Port of `/metrics` by container (docs/architecture.md); nginx and Redis have none."""
SCRAPE_TIMEOUT_SECONDS = 2.0
MAX_SCRAPE_BYTES = 1 << 20
OUR_PREFIX = "shoal_"
"""Only our own metrics are kept; histogram buckets are left out. The file stays small and holds nothing of the interpreter's."""


@dataclass(frozen=True)
class SampledProcess:
    """One process to read."""

    pod: str
    container: str
    address: str
    pid: int | None


def parse_metrics(text: str) -> dict[str, float]:
    """Our samples of a Prometheus text page by `metric_key`; raises ValueError when the page is not in that format."""
    return {
        metric_key(sample.name, sample.labels): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(OUR_PREFIX)
        and not sample.name.endswith(("_bucket", "_created"))
        and abs(sample.value) < float("inf")
    }


def cpu_seconds(pid: int) -> float | None:
    """User and system seconds of a process, its living descendants and its children that have ended; None when it is gone."""
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
    except psutil.Error:
        return None
    total = 0.0
    for member in members:
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def scrape(client: httpx.Client, target: SampledProcess) -> dict[str, float]:
    """Our metrics of one process; empty when it has none or does not answer."""
    port = METRIC_PORTS.get(target.container)
    if port is None or not target.address:
        return {}
    try:
        response = client.get(f"http://{target.address}:{port}/metrics")
        if response.status_code != 200 or len(response.content) > MAX_SCRAPE_BYTES:
            return {}
        return parse_metrics(response.text)
    except (httpx.HTTPError, ValueError):
        return {}


class Sampler:
    """Appends to one file until stopped; `start` and `stop` frame a session."""

    def __init__(
        self, path: Path, targets: Callable[[], Iterable[SampledProcess]], seconds: float = SAMPLE_SECONDS
    ) -> None:
        self._path = path
        self._targets = targets
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sampler", daemon=True)

    def start(self) -> None:
        self._append([SessionRecord(unix=time.time(), event="start")])
        self._thread.start()

    def read_once(self, client: httpx.Client) -> None:
        """One reading of every process, appended at once."""
        records = [
            SampleRecord(
                unix=time.time(),
                pod=target.pod,
                container=target.container,
                pid=target.pid,
                cpu_seconds=cpu_seconds(target.pid) if target.pid else None,
                metrics=scrape(client, target),
            )
            for target in self._targets()
        ]
        self._append(records)

    def end_readings(self) -> None:
        """Take a last reading and stop reading: to be called while the parts still run."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(timeout=60)
        with self._client() as client:
            self._read_safely(client)

    def stop(self, outcome: str) -> None:
        """Write the end of the session, after the parts have stopped."""
        self._ended.set()
        self._append([SessionRecord(unix=time.time(), event="stop", outcome=outcome)])

    def _client(self) -> httpx.Client:
        return httpx.Client(
            verify=well_known(), trust_env=False, timeout=SCRAPE_TIMEOUT_SECONDS, follow_redirects=False
        )

    def _loop(self) -> None:
        with self._client() as client:
            while not self._ended.wait(self._seconds):
                self._read_safely(client)

    def _read_safely(self, client: httpx.Client) -> None:
        """A reading that fails costs that reading, never the run."""
        try:
            self.read_once(client)
        except Exception as error:
            structlog.get_logger().warning(
                "could not read the state of the parts", error=f"{type(error).__name__}: {error}"
            )

    def _append(self, records: Iterable[Contract]) -> None:
        """Append whole lines in one write, so that a kill cuts at most the last one."""
        data = b"".join(record.to_json() + b"\n" for record in records)
        if not data:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                data = b"\n" + data  # the line before was cut by a kill
            os.write(handle, data)
        finally:
            os.close(handle)
