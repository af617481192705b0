"""Clients that are slow, endless or too many: what each may hold of a service, with the server that the services run on."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from servers import Loopback, wait_until
from shoal.transport import patience, server
from shoal.transport.pace import Pace
from shoal.transport.patience import PatientProtocol, within
from shoal.transport.problems import add_problem_answers
from shoal.transport.server import BodyLimit

SHORT_SECONDS = 0.6
LARGE_BYTES = 32 << 20


@pytest.fixture(scope="module")
def place(loopback: Loopback) -> Iterator[tuple[str, int]]:
    """A service with our protocol and our body limit, whose patience is short."""
    app = FastAPI()
    app.add_middleware(BodyLimit, max_bytes=1000)
    add_problem_answers(app)

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    large = b"x" * LARGE_BYTES

    @app.get("/large")
    async def _large() -> Response:
        return Response(large)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "HEAD_SECONDS", SHORT_SECONDS)
        patch.setattr(patience, "BODY_SECONDS", SHORT_SECONDS)
        patch.setattr(patience, "IDLE_SECONDS", 2 * SHORT_SECONDS)
        patch.setattr(server, "BODY_SECONDS", SHORT_SECONDS)
        address = loopback.address()
        running = uvicorn.Server(
            uvicorn.Config(app, http=PatientProtocol, ws="none", host=address, port=8080, log_level="critical")
        )
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        wait_until("the service", lambda: running.started)
        yield address, 8080
        running.should_exit = True
        thread.join(10)


@contextlib.contextmanager
def connection(place: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(place, timeout=20) as line:
        yield line


@contextlib.contextmanager
def few_bytes_at_a_time(place: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection whose other side can send little before its bytes are taken."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        line.settimeout(20)
        line.connect(place)
        yield line


def everything(line: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    while part := line.recv(65536):
        parts.append(part)
    return b"".join(parts)


def until(line: socket.socket, end: bytes) -> bytes:
    """What comes until `end` has come."""
    found = b""
    while not found.endswith(end):
        part = line.recv(65536)
        assert part, found
        found += part
    return found


def test_a_connection_that_asks_nothing_is_closed(place: tuple[str, int]) -> None:
    with connection(place) as line:
        assert everything(line).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_comes_letter_by_letter_is_closed(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert everything(line).startswith(b"HTTP/1.1 408 ")


def test_the_next_request_of_a_kept_connection_is_not_waited_for_longer(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok")
        assert until(line, b"ok").startswith(b"HTTP/1.1 200 ")
        line.sendall(b"POST /echo HT")
        assert everything(line).startswith(b"HTTP/1.1 408 ")


def test_a_kept_connection_may_rest_between_requests(place: tuple[str, int]) -> None:
    with connection(place) as line:
        for _ in range(2):
            line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok")
            assert until(line, b"ok").startswith(b"HTTP/1.1 200 ")
            time.sleep(2 * SHORT_SECONDS)


def test_a_head_without_end_is_closed(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        filler = b"X-More: " + b"y" * 4000 + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(40):
                line.sendall(filler)
        with contextlib.suppress(ConnectionResetError):
            assert b" 431 " in everything(line)[:100]


def test_a_body_that_stops_half_way_is_refused_and_its_connection_closed(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        answer = everything(line)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer
    assert b"Body arrived too slowly" in answer


def test_a_body_that_goes_on_for_ever_after_its_refusal_does_not_hold_the_connection(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")
        assert until(line, b"}").startswith(b"HTTP/1.1 413 ")
        ends = time.monotonic() + 20
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() < ends:
                line.sendall(b"z")
                time.sleep(SHORT_SECONDS / 10)
        assert time.monotonic() < ends, "whoever sends a letter now and then held it"


def test_a_body_that_ends_after_its_refusal_leaves_the_connection_for_the_next_request(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n")
        assert until(line, b"}").startswith(b"HTTP/1.1 413 ")
        line.sendall(b"z" * 2000)
        time.sleep(2 * SHORT_SECONDS)
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok")
        assert until(line, b"ok").startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_longer_than_it_says_is_no_second_request(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok and more")
        answer = everything(line)
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"ok")


@pytest.mark.parametrize("further", [b"", b"Connection: close\r\n"])
def test_an_answer_that_nobody_takes_does_not_hold_the_connection(place: tuple[str, int], further: bytes) -> None:
    with few_bytes_at_a_time(place) as line:
        line.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n" + further + b"\r\n")
        time.sleep(10 * SHORT_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            assert len(everything(line)) < LARGE_BYTES


def test_an_answer_may_be_taken_slowly(place: tuple[str, int]) -> None:
    with few_bytes_at_a_time(place) as line:
        line.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        began, taken = time.monotonic(), 0
        while part := line.recv(1 << 20):
            taken += len(part)
            time.sleep(max(0.0, began + 5 * SHORT_SECONDS * taken / LARGE_BYTES - time.monotonic()))
    assert time.monotonic() - began > 4 * SHORT_SECONDS
    assert taken > LARGE_BYTES


def test_a_chunked_body_above_the_limit_is_refused(place: tuple[str, int]) -> None:
    with connection(place) as line:
        line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        line.sendall(b"400\r\n" + b"z" * 0x400 + b"\r\n0\r\n\r\n")
        assert everything(line).startswith(b"HTTP/1.1 413 ")


def test_a_length_that_is_no_number_is_refused(place: tuple[str, int]) -> None:
    for length in (b"-1", b"1e3", b"99999999999999999999", b"2, 3"):
        with connection(place) as line:
            line.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
            status = int(line.recv(65536).split()[1])
        assert status in (400, 413), length


async def parts_of(pauses: list[float]) -> AsyncIterator[bytes]:
    for pause in pauses:
        await asyncio.sleep(pause)
        yield b"x"


def gather(pauses: list[float], seconds: float, idle: float) -> int:
    async def count() -> int:
        return len([part async for part in within(parts_of(pauses), lambda: seconds, idle)])

    return asyncio.run(count())


def test_an_upload_may_take_its_time_but_not_rest() -> None:
    assert gather([0.0, 0.01, 0.01], 10.0, 5.0) == 3
    with pytest.raises(TimeoutError):
        gather([0.0, 60.0], 120.0, 0.05)
    with pytest.raises(TimeoutError):
        gather([0.02] * 100, 0.2, 5.0)


# How often one caller may ask


def test_a_pace_allows_a_burst_and_then_its_rate() -> None:
    now = 0.0
    pace = Pace(2.0, 5, clock=lambda: now)
    assert [pace.take("a") for _ in range(5)] == [0.0] * 5
    assert pace.take("a") == pytest.approx(0.5)
    assert pace.take("b") == 0.0, "callers are told apart"
    now = 0.5
    assert pace.take("a") == 0.0
    assert pace.take("a") == pytest.approx(0.5)
    now = 1000.0
    assert [pace.take("a") for _ in range(6)][-1] > 0.0, "what was not used does not pile up"


def test_refused_requests_do_not_push_the_next_one_off() -> None:
    now = 0.0
    pace = Pace(1.0, 1, clock=lambda: now)
    pace.take("a")
    for _ in range(100):
        assert pace.take("a") == pytest.approx(1.0)
    now = 1.0
    assert pace.take("a") == 0.0


def test_callers_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.transport import pace as module

    monkeypatch.setattr(module, "MOST_CALLERS", 10)
    pace = Pace(1.0, 1, clock=lambda: 0.0)
    for number in range(1000):
        assert pace.take(str(number)) == 0.0
    assert len(pace._callers) == 10
