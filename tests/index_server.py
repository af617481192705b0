"""A stand-in for a package index: pages of links as JSON or HTML, and wheels, served from memory on a loopback address."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Index:
    """`wheels` of each package by file name; `status` and `page` instead of pages; `served`: paths that were asked for."""

    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)
    yanked: set[str] = field(default_factory=set)
    page: bytes = b""
    status: int = 200
    html: bool = False
    url: str = ""

    def add(self, package: str, name: str, data: bytes) -> None:
        self.wheels.setdefault(package, {})[name] = data
        self.digests[name] = hashlib.sha256(data).hexdigest()


@contextmanager
def serving_index() -> Iterator[Index]:
    """An index that answers until the block ends."""
    index = Index()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.served.append(self.path)
            kind, _, rest = self.path.strip("/").partition("/")
            if index.status != 200:
                self._send(index.status, "text/plain", b"no")
            elif kind == "simple" and rest in index.wheels:
                self._page(rest)
            elif kind == "files":
                found = {name: data for files in index.wheels.values() for name, data in files.items()}
                self._send(200, "application/octet-stream", found[rest])
            else:
                self._send(404, "text/plain", b"no")

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _page(self, package: str) -> None:
            names = index.wheels[package]
            if index.page:
                self._send(200, "application/vnd.pypi.simple.v1+json", index.page)
                return
            if index.html:
                links = [
                    f'<a href="../../files/{name}#sha256={index.digests[name]}" data-requires-python="&gt;=3.9"'
                    f"{' data-yanked' * (name in index.yanked)}>{name}</a>"
                    for name in names
                ]
                self._send(200, "text/html", b"<!DOCTYPE html>" + "\n".join(links).encode())
                return
            files = [
                {
                    "filename": name,
                    "url": f"/files/{name}",
                    "hashes": {"sha256": index.digests[name]},
                    "yanked": name in index.yanked and "wrong",
                }
                for name in names
            ]
            body = {"meta": {"api-version": "1.0"}, "name": package, "files": files}
            self._send(200, "application/vnd.pypi.simple.v1+json", json.dumps(body).encode())

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
