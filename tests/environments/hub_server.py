"""A stand-in for a Hugging Face hub: the routes by which its library reads a data set, served from memory on a loopback address."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "5f2c" * 10


@dataclass
class Hub:
    """`files` of each repository by path; `problems`: status and error code instead of a repository; `served`: paths that were fetched."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    problems: dict[str, tuple[int, str]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    served: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            hub.tokens.append(self.headers.get("Authorization", ""))
            parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
            if parts[:2] == ["api", "datasets"] and parts[4:5] == ["revision"]:
                self._info("/".join(parts[2:4]), parts[5])
            elif parts[:1] == ["datasets"] and parts[3:4] == ["resolve"]:
                self._file("/".join(parts[1:3]), "/".join(parts[5:]), with_body=with_body)
            else:
                self._send(404, b"{}")

        def _info(self, name: str, revision: str) -> None:
            if name in hub.problems:
                status, code = hub.problems[name]
                self._send(status, b'{"error": "no"}', {"X-Error-Code": code} if code else {})
            elif name not in hub.files:
                self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", COMMIT):
                self._send(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
            else:
                siblings = [{"rfilename": path} for path in hub.files[name]]
                body = {
                    "id": name,
                    "sha": COMMIT,
                    "private": False,
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                    "siblings": siblings,
                }
                self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def _file(self, name: str, path: str, *, with_body: bool) -> None:
            if path in hub.lost:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            data = hub.files[name][path]
            if with_body:
                hub.served.append(path)
            self._send(
                200, data, {"ETag": f'"{hash(data) & 0xFFFFFFFF:x}"', "X-Repo-Commit": COMMIT}, with_body=with_body
            )

        def _send(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, *, with_body: bool = True
        ) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body and self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
