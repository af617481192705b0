"""Health and metrics of a process over HTTP: `/healthz`, `/readyz`, `/metrics`.

`/healthz` answers 200 while progress is made, not while a thread answers: the main loop reports progress to `Liveness`, and a loop that hangs
longer than its limit turns 503, upon which the supervisor restarts it.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

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


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def metrics_kind(accept: str | None) -> str:
    """The Accept header that stands for this one: `OPENMETRICS`, or the empty one, of whoever takes only text. Versions are not told apart."""
    try:
        _, content_type = choose_encoder(accept or "")
    except (TypeError, ValueError):  # a version that is none, in a header that anybody may send
        return ""
    return OPENMETRICS if content_type.startswith("application/openmetrics-text") else ""


def render_metrics(accept: str | None = None, registry: CollectorRegistry = REGISTRY) -> tuple[bytes, str]:
    """Body and content type of `/metrics`: OpenMetrics, which has exemplars, for who accepts it, Prometheus text for others."""
    encode, content_type = choose_encoder(metrics_kind(accept))
    return encode(registry), content_type


Route = Callable[[Message], tuple[int, dict[str, str], bytes]]
"""A further path of a health server: request headers (names in any case) in; status, headers and body out."""


class _Server(ThreadingHTTPServer):
    request_queue_size = (
        128  # nginx asks about tokens here, in bursts; the default of 5 makes connections wait a second
    )

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left before its answer is not an error of ours; anything else is told with its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            structlog.get_logger().error("a request to the health server failed", exc_info=True)


def serve_health(
    port: int,
    liveness: Liveness,
    ready: Callable[[], str | None],
    routes: Mapping[str, Route] | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> ThreadingHTTPServer:
    """Serve health on `SHOAL_BIND`:`port` from a daemon thread. `ready` gives None, or why the process is not ready.

    `routes` adds paths beside the three; `registry` is what `/metrics` shows.
    """
    further = dict(routes or {})

    class ProbeHandler(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a client to send its request

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200 if liveness.alive() else 503, liveness.describe().encode())
            elif self.path == "/readyz":
                reason = ready()
                self._answer(200 if reason is None else 503, (reason or "ready").encode())
            elif self.path == "/metrics":
                body, content_type = render_metrics(self.headers.get("Accept"), registry)
                self._answer(200, body, content_type)
            elif self.path in further:
                status, headers, body = further[self.path](self.headers)
                self._answer(status, body, headers=headers)
            else:
                self._answer(404, b"paths are /healthz, /readyz and /metrics")

        def _answer(
            self,
            status: int,
            body: bytes,
            content_type: str = "text/plain; charset=utf-8",
            headers: Mapping[str, str] | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if status != 204:  # which has no body (RFC 9110)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes come every second; they are not worth a line."""

    server = _Server((bind_address(), port), ProbeHandler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
