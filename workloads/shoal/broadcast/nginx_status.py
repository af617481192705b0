"""nginx's own figures (`stub_status`) as metrics of the process beside it.

In: the Unix socket in `www/` on which nginx tells them; a socket, because every TCP listener of the pod can be reached by others. Out: Prometheus
metrics, read when somebody scrapes; `shoal_nginx_up` is 0 while nginx does not answer. Registered by `relay` and `origin`.
"""

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

SOCKET_FILE = "nginx.sock"
MAX_SOCKET_PATH = 107  # bytes in sockaddr_un, less the closing NUL
TIMEOUT_SECONDS = 2.0
FORMAT = re.compile(
    rb"Active connections: (?P<active>\d+)\s+server accepts handled requests\s+(?P<accepts>\d+) (?P<handled>\d+) (?P<requests>\d+)\s+"
    rb"Reading: (?P<reading>\d+) Writing: (?P<writing>\d+) Waiting: (?P<waiting>\d+)"
)


def status_socket(folder: Path) -> Path | None:
    """Where the nginx of the pod at `folder` (`SHOAL_HOME`) tells its status; None where the path is too long for a socket."""
    path = folder / "www" / SOCKET_FILE
    return path if len(str(path).encode()) <= MAX_SOCKET_PATH else None


class NginxStatus(Collector):
    """A collector for `prometheus_client.REGISTRY`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        figures = self.read()
        yield GaugeMetricFamily("shoal_nginx_up", "1 while this pod's nginx answers.", value=float(bool(figures)))
        if not figures:
            return
        connections = GaugeMetricFamily("shoal_nginx_connections", "Connections by state.", labels=["state"])
        for state in ("active", "reading", "writing", "waiting"):
            connections.add_metric([state], figures[state])
        yield connections
        for name, text in (("accepts", "Connections accepted."), ("handled", "Connections handled.")):
            yield CounterMetricFamily(f"shoal_nginx_{name}", text, value=figures[name])
        yield CounterMetricFamily(
            "shoal_nginx_requests", "Requests, including refused ones.", value=figures["requests"]
        )

    def read(self) -> dict[str, int]:
        """nginx's current figures; empty when it says nothing that can be read."""
        if self._path is None:
            return {}
        connection = _UnixConnection(self._path)
        try:
            connection.request("GET", "/")
            found = FORMAT.search(connection.getresponse().read(4096))
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        return {name: int(value) for name, value in found.groupdict().items()} if found is not None else {}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("nginx", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(str(self._path))
