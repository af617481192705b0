"""Health and metrics of a process over HTTP: `/healthz`, `/readyz`, `/metrics`.

`/healthz` answers 200 while progress is made, not while a thread answers: the main loop reports progress to `Liveness`, and a loop that hangs
longer than its limit turns 503, upon which the supervisor restarts it.
"""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import REGISTRY
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.contracts.run import bind_address


class Liveness:
    """When progress was last made; alive while that is less than `limit_seconds` ago."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._last = time.monotonic()

    def progress(self) -> None:
        self._last = time.monotonic()

    def alive(self) -> bool:
        return time.monotonic() - self._last < self.limit_seconds

    def describe(self) -> str:
        return f"last progress {time.monotonic() - self._last:.0f} s ago, limit {self.limit_seconds:.0f} s"


def render_metrics() -> tuple[bytes, str]:
    """Body and content type of `/metrics`."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST


def serve_health(port: int, liveness: Liveness, ready: Callable[[], str | None]) -> ThreadingHTTPServer:
    """Serve health on `SHOAL_BIND`:`port` from a daemon thread. `ready` gives None, or why the process is not ready."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a client to send its request

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200 if liveness.alive() else 503, liveness.describe().encode())
            elif self.path == "/readyz":
                reason = ready()
                self._answer(200 if reason is None else 503, (reason or "ready").encode())
            elif self.path == "/metrics":
                body, content_type = render_metrics()
                self._answer(200, body, content_type)
            else:
                self._answer(404, b"paths are /healthz, /readyz and /metrics")

        def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes come every second; they are not worth a line."""

    server = ThreadingHTTPServer((bind_address(), port), Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
