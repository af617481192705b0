"""Orchestrators of tenants who mean harm, as real servers on one loopback address: each answers each connection by one rule, or never.

`HostileOrchestrators(address).serve(rule)` gives the URL of one. A rule gets the connection and writes what it likes.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

Rule = Callable[[socket.socket, threading.Event], None]
"""What is done with a connection; the event is set at the test's end."""

ENOUGH = 1 << 28
"""Bytes that a test's server sends at most to a client that takes them all."""


def silent(connection: socket.socket, ended: threading.Event) -> None:
    """Takes the request and says nothing."""
    ended.wait(60)


def _endless(connection: socket.socket, head: bytes, piece: bytes) -> None:
    connection.sendall(head)
    for _ in range(ENOUGH // len(piece)):
        connection.sendall(piece)


def gigabytes(connection: socket.socket, ended: threading.Event) -> None:
    """A body without an end."""
    _endless(connection, b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536)


def endless_head(connection: socket.socket, ended: threading.Event) -> None:
    """Header fields without an end."""
    _endless(connection, b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000)


def informing(connection: socket.socket, ended: threading.Event) -> None:
    """Interim answers without an end."""
    _endless(connection, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def dripping(connection: socket.socket, ended: threading.Event) -> None:
    """A byte now and then: no single wait is long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
    while not ended.wait(0.02):
        connection.sendall(b" ")


def saying(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> Rule:
    """Answers with this, and closes."""

    def say(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return say


class HostileOrchestrators:
    """Servers of one test. `asked` counts the connections by URL."""

    def __init__(self, address: str) -> None:
        self._address, self._ended = address, threading.Event()
        self._listeners: list[socket.socket] = []
        self.asked: dict[str, int] = {}

    def serve(self, rule: Rule | Iterator[Rule]) -> str:
        """One more; with several rules each connection takes the next."""
        listener = socket.create_server((self._address, 0), backlog=64)
        self._listeners.append(listener)
        url = f"http://{self._address}:{listener.getsockname()[1]}"
        self.asked[url] = 0
        threading.Thread(target=self._accept, args=(listener, url, rule), daemon=True).start()
        return url

    def _accept(self, listener: socket.socket, url: str, rule: Rule | Iterator[Rule]) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self.asked[url] += 1
                chosen = rule if callable(rule) else next(rule)
                threading.Thread(target=self._serve, args=(connection, chosen), daemon=True).start()

    def _serve(self, connection: socket.socket, rule: Rule) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            rule(connection, self._ended)

    def close(self) -> None:
        self._ended.set()
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
