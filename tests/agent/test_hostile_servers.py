"""What `SignedClient` makes of a server that means harm: every request ends by its deadline, whatever is answered."""

import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from servers import Loopback
from shoal.crypto.keys import PrivateKey
from shoal.transport import Refused, SignedClient, Unavailable

Answer = tuple[int, dict[str, str]]
ENOUGH = 50
"""More tries than any request of these tests has time for: a client that comes so often is let go, and the test fails by its count."""


class Hostile:
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

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


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
