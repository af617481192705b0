"""`/healthz`, `/readyz` and `/metrics` of the operator on one port. Checks are functions that return what is wrong, or nothing."""

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Check = Callable[[], str]
"""Returns what is wrong, in words; empty when nothing is."""


class HealthServer:
    """Serves until `stop`; `port` is the one that was taken. Without an address it listens on all, of IPv4 and IPv6."""

    def __init__(self, address: str, port: int, registry: CollectorRegistry, healthy: Check, ready: Check) -> None:
        class HealthHandler(BaseHTTPRequestHandler):
            timeout = 10  # a client that sends nothing holds one thread for ten seconds

            def do_GET(self) -> None:
                match self.path.partition("?")[0]:
                    case "/healthz":
                        self._say(healthy())
                    case "/readyz":
                        self._say(ready())
                    case "/metrics":
                        self._send(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                    case _:
                        self._send(404, "text/plain", b"there are /healthz, /readyz and /metrics\n")

            def _say(self, wrong: str) -> None:
                self._send(503 if wrong else 200, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode())

            def _send(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes come every few seconds; they are not worth a line."""

        both = not address and socket.has_dualstack_ipv6()  # a cluster's pods may have addresses of one family only

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
            daemon_threads = True

            def server_bind(self) -> None:
                if both:
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                super().server_bind()

        self._server = Server((address, port), HealthHandler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
