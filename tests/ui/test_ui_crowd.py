"""Who opens many connections to the page, and asks nothing, takes no place that others need."""

import asyncio
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Response

from servers import Loopback, wait_until
from shoal.ui import serving

OF_ONE, IN_ALL = 3, 7
LARGE = 32 << 20
"""More than a connection holds on its way."""
ASK = b"GET /healthz HTTP/1.1\r\nHost: page\r\n\r\n"


async def endless() -> None:
    await asyncio.sleep(600)


@pytest.fixture
def crowded(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The page's server with few places, and one path."""
    monkeypatch.setattr(serving, "MOST_OF_ONE_ADDRESS", OF_ONE)
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", IN_ALL)
    app = FastAPI()
    app.get("/healthz")(lambda: "alive")
    app.get("/news")(endless)
    app.get("/large")(lambda: Response(bytes(LARGE)))
    running = serving.server(app, host=loopback.address(), port=0)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_until("the page", lambda: running.started)
    yield running.servers[0].sockets[0].getsockname()
    running.should_exit = True
    thread.join(20)


class Visitor:
    """One address and its connections, which are closed at the end."""

    def __init__(self, place: tuple[str, int], address: str) -> None:
        self._place = place
        self._address = address
        self.lines: list[socket.socket] = []

    def __enter__(self) -> "Visitor":
        return self

    def __exit__(self, *_: object) -> None:
        for line in self.lines:
            line.close()

    def opens(self, count: int = 1) -> None:
        """So many more connections, each of which was answered once."""
        for _ in range(count):
            assert self.asks() == 200

    def asks(self) -> int:
        """The status of the answer on a new connection, which stays open."""
        return status(self.sends(ASK))

    def sends(self, request: bytes) -> socket.socket:
        line = socket.create_connection(self._place, timeout=20, source_address=(self._address, 0))
        self.lines.append(line)
        line.sendall(request)
        return line

    def holds(self) -> int:
        """Connections that are answered still."""
        return sum(is_open(line) for line in self.lines)


def status(line: socket.socket) -> int:
    return int(line.recv(65536).split(b" ")[1])


def is_open(line: socket.socket) -> bool:
    try:
        line.sendall(ASK)
        return status(line) == 200
    except (ConnectionError, IndexError):
        return False


def test_an_address_has_so_many_places_and_gets_one_back_when_it_closes_one(
    crowded: tuple[str, int], loopback: Loopback
) -> None:
    with Visitor(crowded, loopback.address()) as greedy, Visitor(crowded, loopback.address()) as other:
        greedy.opens(OF_ONE)
        assert greedy.asks() == 429
        other.opens(OF_ONE)
        assert greedy.holds() == OF_ONE, "those that it has are its own still"
        greedy.lines[0].close()
        wait_until("the place to be free", lambda: greedy.asks() == 200)


def test_where_all_places_are_taken_a_newcomer_gets_one_of_who_holds_most(
    crowded: tuple[str, int], loopback: Loopback
) -> None:
    first, second, small, newcomer = (Visitor(crowded, loopback.address()) for _ in range(4))
    with first, second, small, newcomer:
        first.opens(OF_ONE)
        second.opens(OF_ONE)
        small.opens()
        newcomer.opens()
        assert sorted([first.holds(), second.holds()]) == [OF_ONE - 1, OF_ONE]
        assert small.holds() == 1
        newcomer.opens()
        assert (first.holds(), second.holds()) == (OF_ONE - 1, OF_ONE - 1)


def test_who_holds_most_loses_one_even_where_all_of_them_ask_for_something(
    crowded: tuple[str, int], loopback: Loopback
) -> None:
    greedy, small, other, newcomer = (Visitor(crowded, loopback.address()) for _ in range(4))
    with greedy, small, other, newcomer:
        for _ in range(OF_ONE):
            greedy.sends(ASK.replace(b"healthz", b"news"))
        small.opens(OF_ONE - 1)
        other.opens(IN_ALL - 2 * OF_ONE + 1)
        newcomer.opens()
        assert small.holds() + other.holds() == IN_ALL - OF_ONE
        ended = select.select(greedy.lines, [], [], 20)[0]
        assert len(ended) == 1


def test_an_answer_that_nobody_reads_holds_a_place_until_somebody_else_needs_it(
    crowded: tuple[str, int], loopback: Loopback
) -> None:
    greedy, other, more, newcomer = (Visitor(crowded, loopback.address()) for _ in range(4))
    with greedy, other, more, newcomer:
        for _ in range(OF_ONE):
            line = greedy.sends(
                ASK.replace(b"healthz", b"large").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            )
            assert line.recv(9) == b"HTTP/1.1 ", "the server has answered, and would close if it could"
        assert greedy.asks() == 429
        other.opens(OF_ONE - 1)
        more.opens(IN_ALL - 2 * OF_ONE + 1)
        newcomer.opens()
        assert other.holds() + more.holds() == IN_ALL - OF_ONE


def test_who_holds_as_much_as_the_others_takes_nothing_from_them(
    crowded: tuple[str, int], loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 2 * OF_ONE - 1)
    with Visitor(crowded, loopback.address()) as first, Visitor(crowded, loopback.address()) as second:
        first.opens(OF_ONE)
        second.opens(OF_ONE - 1)
        assert second.asks() == 429
        assert (first.holds(), second.holds()) == (OF_ONE, OF_ONE - 1)
