"""A registry of this process, strict in what the distribution specification says of pushes, that can ask for logins and break.

Debian's docker-registry takes the same pushes in `make soak`; it has no token service, and does not break when asked.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD, TOKEN = "ann", "planted-password-of-nobody", "planted-token-of-nobody"


class Registry:
    """Serves until `close`. `blobs` and `tags` are what it was given."""

    def __init__(self, address: str) -> None:
        self.blobs: dict[str, bytes] = {}
        self.tags: dict[str, bytes] = {}
        self.scheme = ""
        self.fail_after: int | None = None
        self.uploads_at = ""
        self.accepts_any_upload = False
        self.authorizations: set[str] = set()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer()

            do_GET = do_POST = do_PUT = do_HEAD  # noqa: N815 - the names that the server calls

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, data = registry.handle(
                    self.command, self.path, self.headers.get("Authorization") or "", body
                )
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.host = f"{address}:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.authorizations.add(authorization)
        place, query = urlsplit(path).path, parse_qs(urlsplit(path).query)
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if place == "/token":
            if authorization != basic or query != {"service": ["it"], "scope": ["repository:team/demo:pull,push"]}:
                return 401, {}, b""
            return 200, {}, json.dumps({"token": TOKEN}).encode()
        if self.scheme and authorization != {"Basic": basic, "Bearer": f"Bearer {TOKEN}"}[self.scheme]:
            asked = {
                "Basic": 'Basic realm="it"',
                "Bearer": f'Bearer realm="{self.url}/token",service="it",scope="repository:team/demo:pull,push"',
            }
            return 401, {"WWW-Authenticate": asked[self.scheme]}, b"unauthorized"
        name = "team/demo"
        if method == "HEAD" and place.startswith(f"/v2/{name}/blobs/"):
            found = place.rpartition("/")[2] in self.blobs
            return (200 if found else 404), {}, b""
        if method == "POST" and place == f"/v2/{name}/blobs/uploads/":
            return 202, {"Location": f"{self.uploads_at}/v2/{name}/blobs/uploads/1?state=a%2Fb"}, b""
        if method == "PUT" and place == f"/v2/{name}/blobs/uploads/1":
            return self._upload(query, body), {}, b""
        if method == "PUT" and place.startswith(f"/v2/{name}/manifests/"):
            named = json.loads(body)
            needed = {each["digest"] for each in [named["config"], *named["layers"]]}
            if not needed <= self.blobs.keys() and not self.uploads_at:
                return 404, {}, b"MANIFEST_BLOB_UNKNOWN"
            self.tags[f"{name}:{place.rpartition('/')[2]}"] = body
            return 201, {}, b""
        return 404, {}, b"NAME_UNKNOWN"

    def _upload(self, query: dict[str, list[str]], body: bytes) -> int:
        if self.fail_after is not None and len(self.blobs) >= self.fail_after:
            return 503
        [digest] = query["digest"]
        if query.get("state") != ["a/b"] or f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            return 400
        self.blobs[digest] = body
        return 201
