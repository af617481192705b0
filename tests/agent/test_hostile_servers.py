"""What clients make of a server that means harm: every request ends by its deadline, and no answer fills this machine's memory."""

import gzip
import io
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from servers import Loopback
from shoal.agent.hand_in import UploadFailedError, post_form
from shoal.contracts.protocol import UploadGrant
from shoal.crypto.keys import PrivateKey
from shoal.transport import Refused, SignedClient, Unavailable
from shoal.transport.client import MAX_REPLY_BYTES

Answer = tuple[int, dict[str, str]]
ENOUGH = 50
"""More tries than any request of these tests has time for: a client that comes so often is let go, and the test fails by its count."""


class Serving:
    """Answers requests at `url` until `close`."""

    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer((address, 0), handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Hostile(Serving):
    """A server whose `answers` decide about each request by its number; `seen` counts them."""

    def __init__(self, address: str, answers: Callable[[int], Answer]) -> None:
        self.seen = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen += 1
                status, headers = (200, {}) if outer.seen > ENOUGH else answers(outer.seen)
                self.send_response_only(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        super().__init__(address, Handler)


@pytest.fixture
def hostile(loopback: Loopback) -> Iterator[Callable[[Callable[[int], Answer]], Hostile]]:
    servers: list[Hostile] = []

    def start(answers: Callable[[int], Answer]) -> Hostile:
        servers.append(Hostile(loopback.address(), answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def clock_ahead(seconds: float) -> Answer:
    return 401, {"Date": formatdate(time.time() + seconds, usegmt=True)}


def test_a_clock_that_keeps_moving_is_followed_once_a_request(
    hostile: Callable[[Callable[[int], Answer]], Hostile],
) -> None:
    server = hostile(lambda number: clock_ahead(600 if number % 2 else -600))
    with pytest.raises(Refused):
        SignedClient(server.url, PrivateKey.generate()).request("GET", "/", deadline_seconds=5.0)
    assert server.seen == 2


@pytest.mark.parametrize("wait", ["nan", "-1", "-inf", "inf", "1e999", "soon"])
def test_a_pause_that_is_no_number_of_seconds_is_not_kept(
    hostile: Callable[[Callable[[int], Answer]], Hostile], wait: str
) -> None:
    server = hostile(lambda number: (503, {"Retry-After": wait}))
    with pytest.raises(Unavailable, match="503"):
        SignedClient(server.url).request("GET", "/", deadline_seconds=1.0)
    assert 2 <= server.seen < ENOUGH, "it is tried again, with pauses of the client's own"


class Pouring(Serving):
    """A server that answers every request with `piece` again and again, until the client hangs up or `most` bytes were taken."""

    def __init__(
        self, address: str, status: int, piece: bytes, most: int, headers: dict[str, str] | None = None
    ) -> None:
        self.sent = 0
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.headers["Accept-Encoding"])
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response_only(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    while outer.sent < most:
                        outer.sent += self.wfile.write(piece)
                except OSError:
                    pass  # the client has hung up

            do_POST = do_GET  # noqa: N815 - the library's name

            def log_message(self, format: str, *args: object) -> None:
                return

        super().__init__(address, Handler)


ENDLESS = 1 << 30
IN_BUFFERS = 32 << 20
"""What the kernel takes of a server whose client reads nothing, and more."""


def test_an_answer_that_unpacks_to_more_than_it_has_on_the_wire_is_not_unpacked(loopback: Loopback) -> None:
    bomb = gzip.compress(bytes(2 * MAX_REPLY_BYTES))
    server = Pouring(loopback.address(), 200, bomb, len(bomb), {"Content-Encoding": "gzip"})
    try:
        with pytest.raises(Unavailable, match="Content-Encoding 'gzip'; asked for: identity"):
            SignedClient(server.url).request("GET", "/", deadline_seconds=0.5)
    finally:
        server.close()
    assert set(server.asked) == {"identity"}


def test_an_endless_answer_is_read_up_to_the_bound(loopback: Loopback) -> None:
    server = Pouring(loopback.address(), 200, bytes(1 << 20), ENDLESS)
    try:
        with pytest.raises(Unavailable, match=f"longer than {MAX_REPLY_BYTES} bytes"):
            SignedClient(server.url).request("GET", "/", deadline_seconds=0.1)
    finally:
        server.close()
    assert server.sent < ENDLESS


@pytest.mark.parametrize("status", [200, 500])
def test_of_a_stores_answer_to_an_upload_hardly_anything_is_read(loopback: Loopback, status: int) -> None:
    server = Pouring(loopback.address(), status, b"no room " * (1 << 17), ENDLESS)
    grant = UploadGrant(url=f"{server.url}/", fields={"key": "k"}, expires_unix=1e9)
    try:
        if status == 200:
            post_form(grant, io.BytesIO(b"rollouts"))
        else:
            with pytest.raises(UploadFailedError) as failed:
                post_form(grant, io.BytesIO(b"rollouts"))
            assert str(failed.value).startswith("the store answered 500: no room no room")
            assert len(str(failed.value)) < 400
    finally:
        server.close()
    assert server.sent < IN_BUFFERS
