"""What nginx served, counted from its access log: bytes and requests, exact across restarts.

nginx writes one JSON line a request of a known node into a file an hour (`nginx.py` says so in its configuration); here every whole line is
counted once. Offsets and totals are saved together by one rename, so a kill at any point counts nothing twice and loses nothing. Files that are
counted and older than an hour are deleted: the log is bounded. Called at every turn of the sync agent.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram

from shoal.files import write_atomically
from shoal.telemetry import get_logger

SERVED_BYTES = Counter("shoal_relay_served_bytes_total", "Bytes that nginx sent to nodes, including headers.")
SERVED_REQUESTS = Counter("shoal_relay_served_requests_total", "Requests of nodes that nginx answered.", ["status"])
REQUEST_SECONDS = Histogram(
    "shoal_relay_request_seconds",
    "Time from a request's first byte to the last byte of its answer.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),  # an index that is not new; a shard over a slow line
)
SERVER = Gauge("shoal_relay_server_info", "1 for the nginx version that wrote the access log.", ["server"])

STATE_FILE = "counted.json"
MAX_READ_BYTES = 8 << 20  # a turn; the rest is read at the next


@dataclass
class Totals:
    """All that was ever counted here, and how far each file was read (bytes)."""

    offsets: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    requests: dict[str, int] = field(default_factory=dict)


class Traffic:
    """Counts the access log in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Go on from what an earlier process had counted; the Prometheus counters start at those totals."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.totals = _load(folder / STATE_FILE)
        SERVED_BYTES.inc(self.totals.sent_bytes)
        for status, count in self.totals.requests.items():
            SERVED_REQUESTS.labels(status).inc(count)

    def count(self) -> None:
        """Count the lines that were added since the last call."""
        files = sorted(self._folder.glob("access-*.log"))
        changed = False
        for path in files:
            changed |= self._count_file(path)
        # nginx may hold the file of the last hour open for seconds: the newest two stay.
        for path in files[:-2]:
            if self.totals.offsets.get(path.name, 0) < path.stat().st_size:
                continue
            path.unlink()
            changed |= self.totals.offsets.pop(path.name, None) is not None
        if changed:
            self._save()

    def _count_file(self, path: Path) -> bool:
        offset = self.totals.offsets.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(MAX_READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._count_line(line)
        self.totals.offsets[path.name] = offset + len(whole)
        return bool(whole)

    def _count_line(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            size, status, server = int(entry["bytes"]), str(int(entry["status"])), str(entry["server"])
            seconds = float(entry["seconds"]) if "seconds" in entry else None
        except (ValueError, KeyError, TypeError):
            size, status, server, seconds = 0, "unreadable", "", None
        self.totals.sent_bytes += size
        self.totals.requests[status] = self.totals.requests.get(status, 0) + 1
        SERVED_BYTES.inc(size)
        SERVED_REQUESTS.labels(status).inc()
        if seconds is not None:
            REQUEST_SECONDS.observe(seconds)
        if server:
            SERVER.labels(server).set(1)

    def _save(self) -> None:
        write_atomically(self._folder / STATE_FILE, json.dumps(vars(self.totals)).encode())


def _load(path: Path) -> Totals:
    """What was counted so far; from nothing where the file is not one of ours, as an empty one after a power cut is not."""
    try:
        return Totals(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Totals()
    except (ValueError, TypeError) as error:
        get_logger().warning(
            "the counted traffic cannot be read and starts from zero", path=str(path), problem=str(error)
        )
        return Totals()
