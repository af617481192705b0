"""Peers of the broadcast that belong to other roles, or that misbehave: small servers that speak the contracts.

Who takes announcements (the orchestrator), who tells a client about relays (the agent's socket), and relays that lie.
"""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

from broadcast_certificates import Authority
from broadcast_run import Keys

from servers import Loopback
from shoal.contracts.protocol import Exclusions, VersionAnnouncement
from shoal.contracts.run import AgentState
from shoal.crypto.http_signatures import SignedBy, verify_request


class Announcements:
    """Takes `POST /v1/versions` as the orchestrator does: signed by the trainer, idempotent, 409 for other bytes. Tells relays who is excluded."""

    def __init__(self, run_keys: Keys, loopback: Loopback) -> None:
        self.taken: list[VersionAnnouncement] = []
        self.away = False
        self.excluded: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/v1/exclusions"
                assert self._signed(b"").key == run_keys.roles["relay"].public
                body = Exclusions(nodes=outer.excluded).to_json()
                self.send_response(503 if outer.away else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self._signed(body).key == run_keys.trainer.public
                self.send_response(503 if outer.away else outer._take(VersionAnnouncement.from_json(body)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _signed(self, body: bytes) -> SignedBy:
                return verify_request(
                    method=self.command,
                    url=outer.url + self.path,
                    headers=dict(self.headers),
                    body=body,
                    now_unix=time.time(),
                )

            def log_message(self, *_: object) -> None:
                pass

        address = loopback.address()
        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, announcement: VersionAnnouncement) -> int:
        known = [old for old in self.taken if old.version == announcement.version]
        if known and known[0] != announcement:
            return 409
        if not known:
            self.taken.append(announcement)
        return 204

    def versions(self) -> list[int]:
        return [announcement.version for announcement in self.taken]

    def close(self) -> None:
        self._server.shutdown()


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are ended while they ask; that is nobody's concern."""


class AgentSocket:
    """`GET /v1/state` and `POST /v1/metrics` on a Unix socket; the test sets what is answered."""

    def __init__(self, run_keys: Keys, path: Path) -> None:
        self.state = AgentState(
            node="a" * 64, state="Healthy", relay_token=run_keys.token(), trainer_key=run_keys.trainer.public
        )
        self.metrics: dict[str, float] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, outer.state.to_json())

            def do_POST(self) -> None:
                outer.metrics |= json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(204, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: object) -> None:
                pass

        self._path = path
        self._server = _UnixServer(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def say(self, **changes: object) -> None:
        self.state = AgentState.model_validate({**self.state.model_dump(), **changes})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class OddRelay:
    """Serves a `versions/` tree as nginx would, Range included, but `twist(path, body)` may change what is sent.

    `twist` gives the body to send, or None for 404. It may be slow, silent or endless, too. With `cut_after`, connections break after so
    many bytes of every shard; `asked` lists requests.
    """

    def __init__(
        self,
        www: Path,
        loopback: Loopback,
        twist: Callable[[str, bytes], bytes | None] | None = None,
        authority: Authority | None = None,
    ) -> None:
        """With `authority` it speaks HTTPS only, with a certificate of it."""
        self.twist = twist or (lambda _, body: body)
        self.cut_after: int | None = None
        self.rubbish_after: int | None = None
        """After so many bytes of every shard come bytes that are no TLS."""
        self.hangs_after: int | None = None
        """After so many bytes of every shard nothing comes; the connection stays open."""
        self.too_long_by = 0
        """Bytes that every shard is said to be longer, and is."""
        self.endless: str | None = None
        self.rate: int | None = None
        """Bytes a second of every shard."""
        self.silent: str | None = None
        """What a path ends on that is never answered; the connection stays open."""
        self.drips_headers: str | None = None
        """What a path ends on that is answered with an endless header, a byte at a time."""
        self._ended = threading.Event()
        self.refuse = False
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, wanted = self.path.lstrip("/"), self.headers.get("Range")
                outer.asked.append((path, wanted))
                if outer.refuse:
                    return self.send_error(401)
                if outer.endless is not None and path.endswith(outer.endless):
                    return self._endless()
                if outer.silent is not None and path.endswith(outer.silent):
                    return self._drip(b"")
                if outer.drips_headers is not None and path.endswith(outer.drips_headers):
                    return self._drip(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000)
                source = www / path
                body = outer.twist(path, source.read_bytes()) if source.is_file() else None
                start, size = 0, len(body or b"")
                if wanted is not None and body is not None:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                self.send_response(404 if body is None else 206 if wanted else 200)
                if wanted is not None:
                    self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
                rest = (body or b"")[start:]
                if path.endswith(".bin"):
                    rest += bytes(outer.too_long_by)
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                if outer.cut_after is not None and path.endswith(".bin") and len(rest) > outer.cut_after:
                    self.wfile.write(rest[: outer.cut_after])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif outer.rubbish_after is not None and path.endswith(".bin"):
                    self.wfile.write(rest[: outer.rubbish_after])
                    socket.socket.sendall(self.connection, rest[outer.rubbish_after :])
                    self.close_connection = True
                elif outer.hangs_after is not None and path.endswith(".bin"):
                    self.wfile.write(rest[: outer.hangs_after])
                    outer._ended.wait(60)
                elif outer.rate is not None and path.endswith(".bin"):
                    self._slowly(rest, outer.rate)
                else:
                    self.wfile.write(rest)
                return None

            def _slowly(self, body: bytes, rate: int) -> None:
                step = max(1, rate // 20)
                for at in range(0, len(body), step):
                    self.wfile.write(body[at : at + step])
                    if outer._ended.wait(0.05):
                        return

            def _drip(self, data: bytes) -> None:
                self.close_connection = True
                for at in range(len(data)):
                    self.wfile.write(data[at : at + 1])
                    if outer._ended.wait(0.1):
                        return
                outer._ended.wait(60)

            def _endless(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                try:
                    while True:
                        self.wfile.write(bytes(65536))
                except OSError:
                    return

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    pass  # the client has gone

            def log_message(self, *_: object) -> None:
                pass

        address = loopback.address()
        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_port}"
        if authority is not None:
            folder = www.parent / f"tls-{self._server.server_port}"
            authority.issue(folder, address)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = self.url.replace("http", "https")
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
