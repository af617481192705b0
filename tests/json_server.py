"""A small HTTP server of JSON on this machine, for stand-ins of services that tests ask: who serves says what each request is answered with."""

import json
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


class JsonServer(ABC):
    """Serves at `url` until `close`."""

    def __init__(self, address: str) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer({name: value[0] for name, value in asked.items()})

            def _answer(self, asked: dict[str, str]) -> None:
                status, said = server.answer(self.path, asked)
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @abstractmethod
    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body for a path and the fields of a posted form."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
