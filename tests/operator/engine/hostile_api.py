"""An API server that answers what a test tells it to: refusals, torn lines, silence. Only for what a real one cannot be asked for.

`ScriptedApi` listens on one loopback address; `answers` are taken one after the other for each path, the last one for ever.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import Configuration

from shoal_operator.engine.kinds import Resource

Piece = bytes | float
"""Bytes to send at once, or seconds to say nothing."""


@dataclass
class Answer:
    """One answer. A body of pieces is sent in chunks; `torn` ends the connection without ending the answer."""

    status: int = 200
    body: bytes | Iterable[Piece] = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    torn: bool = False
    chunked: bool = True
    """Without chunks the end of the body is the end of the connection, as in HTTP/1.0."""


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    content_type: str
    at: float


class ScriptedApi:
    """`script(path, *answers)`, then let the code under test talk to `configuration`."""

    def __init__(self, address: str) -> None:
        self.asked: list[Asked] = []
        self._scripts: dict[str, list[Answer | Callable[[Asked], Answer]]] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                place = urlsplit(self.path)
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = Asked(
                    self.command,
                    place.path,
                    {key: values[0] for key, values in parse_qs(place.query).items()},
                    json.loads(data) if data else None,
                    self.headers.get("Content-Type", ""),
                    time.monotonic(),
                )
                self._answer(api._next(asked))

            def _answer(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                if isinstance(answer.body, bytes):
                    self.send_header("Content-Length", str(len(answer.body) + (10 if answer.torn else 0)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                else:
                    self.send_header(*(("Transfer-Encoding", "chunked") if answer.chunked else ("Connection", "close")))
                    self.end_headers()
                    for piece in answer.body:
                        if isinstance(piece, float):
                            api.ended.wait(piece)
                        else:
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if answer.chunked else piece)
                    if answer.chunked and not answer.torn:
                        self.wfile.write(b"0\r\n\r\n")
                if answer.torn or not answer.chunked:
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler._serve)

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that hang up are part of what is tested."""

        self._server = Server((address, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.configuration = Configuration(host=f"http://{address}:{self._server.server_address[1]}")
        self.configuration.proxy = None

    def script(self, path: str, *answers: Answer | Callable[[Asked], Answer]) -> None:
        with self._lock:
            self._scripts[path] = list(answers)

    def requests(self, path: str) -> list[Asked]:
        with self._lock:
            return [asked for asked in self.asked if asked.path == path]

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _next(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            script = self._scripts.get(asked.path)
            if not script:
                return refusal(404, "NotFound", f"nothing is scripted for {asked.path}")
            answer = script.pop(0) if len(script) > 1 else script[0]
        return answer(asked) if callable(answer) else answer


def refusal(status: int, reason: str, message: str = "", **headers: str) -> Answer:
    """A `Status` object, as an API server refuses."""
    body = {"kind": "Status", "code": status, "reason": reason, "message": message}
    return Answer(status, json.dumps(body).encode(), {key.replace("_", "-"): value for key, value in headers.items()})


def config_map(name: str, version: int, value: str = "", namespace: str = "a", **metadata: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "shoal-operator"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
            **metadata,
        },
        "data": {"key": value},
    }


def listed(version: int, *items: dict[str, Any], more: str = "") -> Answer:
    """A list, or a page of one."""
    metadata = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
    bare = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return Answer(body=json.dumps({"kind": "List", "metadata": metadata, "items": bare}).encode())


def listed_whole(kind: str, version: int, *items: dict[str, Any]) -> Answer:
    """A list of custom objects: each item has its kind and version of the API."""
    body = {"kind": f"{kind}List", "apiVersion": "shoal.dev/v1alpha1", "metadata": {"resourceVersion": str(version)}}
    return Answer(body=json.dumps({**body, "items": items}).encode())


def discovery(*resources: Resource) -> dict[str, Answer]:
    """What the API server says of the kinds of our group, by path: kopf looks there for what it may watch."""
    version = {"groupVersion": "shoal.dev/v1alpha1", "version": "v1alpha1"}
    group = {"name": "shoal.dev", "versions": [version], "preferredVersion": version}

    def named(kind: str, plural: str) -> dict[str, Any]:
        verbs = ["list", "watch", "patch"]
        return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}

    kinds = [named(each.kind, each.plural) for each in resources]
    return {
        "/api": Answer(body=json.dumps({"versions": ["v1"]}).encode()),
        "/api/v1": Answer(
            body=json.dumps({"resources": [named("Namespace", "namespaces"), named("Event", "events")]}).encode()
        ),
        "/apis": Answer(body=json.dumps({"groups": [group]}).encode()),
        "/apis/shoal.dev/v1alpha1": Answer(body=json.dumps({"resources": kinds}).encode()),
    }


def event(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "ConfigMap", "metadata": {"resourceVersion": str(version)}})
