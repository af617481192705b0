"""Stands in for the orchestrators of all runs of a test: `GET /v1/run` answers what the test says, by the name that the operator asked for.

Those of `silent` namespaces take the request and never answer.
"""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from shoal.contracts.protocol import RunProgress

PORT = 8080


class Orchestrators:
    """`say(namespace, progress)`; a run of which nothing was said is away (503). Listens on one loopback address for all `*.svc` names."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._said: dict[str, bytes] = {}
        self.silent: set[str] = set()
        self.held: set[str] = set()
        """Names whose request was taken and is not answered."""
        self._closing = threading.Event()
        said, silent, held, closing = self._said, self.silent, self.held, self._closing

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host = self.headers.get("Host", "").rsplit(":", 1)[0]
                if host.removesuffix(".svc").rpartition(".")[2] in silent:
                    held.add(host)
                    closing.wait()
                    return
                body = said.get(host) if self.path == "/v1/run" else None
                self.send_response(200 if body else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                with suppress(
                    BrokenPipeError, ConnectionResetError
                ):  # the operator waits no longer than a second and a half
                    self.wfile.write(body or b"")

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, PORT), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="orchestrators", daemon=True).start()

    def say(self, namespace: str, progress: RunProgress) -> None:
        """From now on this is the progress of its run."""
        self._said[f"{progress.run}-orchestrator.{namespace}.svc"] = progress.model_dump_json().encode()

    def speaks(self, namespace: str, run: str) -> bool:
        """Whether something was said of the run."""
        return f"{run}-orchestrator.{namespace}.svc" in self._said

    def said(self, url: str) -> RunProgress | None:
        """What the orchestrator at this address answers."""
        body = self._said.get(urlsplit(url).hostname or "")
        return None if body is None else RunProgress.model_validate_json(body)

    def hush(self, namespace: str, run: str) -> None:
        """The run's orchestrator does not answer any more."""
        self._said.pop(f"{run}-orchestrator.{namespace}.svc", None)

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
