"""A proxy between a client and a server of a test, which fails as networks and busy servers do."""

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
REFUSAL = BUSY.replace(b"connection:", b"retry-after: 5\r\nconnection:")
DRAIN_SECONDS = 10.0
TRICKLE_SECONDS = 0.25


class Listening(ABC):
    """A TCP server on `listen` whose connections a subclass serves, each in a thread, before a server at `target`."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(listen, backlog=128)
        self.host = listen[0]
        self.url = f"http://{listen[0]}:{self._server.getsockname()[1]}"
        self.connections = 0
        """All that were ever accepted."""

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    @abstractmethod
    def _serve(self, client: socket.socket) -> None:
        """Serve a client, in a thread of its own."""


class Proxy(Listening):
    """A TCP proxy that passes requests on. While `losing`, it drops the connection instead of passing the answer back; while `busy`, it says 503."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        super().__init__(listen, target)
        self.losing = 0
        self.lost = 0
        self.busy = 0
        """Connections that are answered so, and are not passed on."""
        self.start()

    def _serve(self, client: socket.socket) -> None:
        if self.busy:
            self.busy -= 1
            with client:
                client.recv(65536)
                client.sendall(BUSY)
            return
        with client, socket.create_connection(self._target) as upstream:
            threading.Thread(target=self._pass_on, args=(client, upstream), daemon=True).start()
            try:
                while data := upstream.recv(65536):
                    if self.losing:
                        self.losing -= 1
                        self.lost += 1
                        return
                    client.sendall(data)
            except OSError:
                return
            finally:
                # A close alone is not seen by the peer while the other thread still reads from the socket.
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _pass_on(client: socket.socket, upstream: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                upstream.sendall(data)
        except OSError:
            return


@dataclass(frozen=True)
class Slow:
    """How a server answers that is hardly able to: seconds to the first byte of each answer, then bytes a second."""

    first_byte_seconds: float
    bytes_per_second: int


class AilingProxy(Listening):
    """A TCP proxy before an HTTP server that has bad minutes, for whoever keeps connections open too.

    While `refusing`, each request gets 503 with Retry-After, and answers that are on their way are cut off. While `slow`, answers come so.
    `refuse_at` begins the first by itself, in the middle of what a test is about.
    """

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        super().__init__(listen, target)
        self.refusing = False
        self.slow: Slow | None = None
        self.refused = 0
        self.slowed = 0
        """Answers that came slowly."""
        self._lock = threading.Lock()
        self._wanted: bytes | None = None
        self._left = 0
        self.start()

    def refuse_at(self, text: str, count: int = 1) -> None:
        """Refuse from the request on that is the `count`th whose first line has `text`."""
        with self._lock:
            self._wanted, self._left = text.encode(), count

    def _serve(self, client: socket.socket) -> None:
        asked = threading.Event()
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as upstream:
            asking = threading.Thread(target=self._ask, args=(client, upstream, asked), daemon=True)
            asking.start()
            try:
                self._answer(client, upstream, asked)
            finally:
                for each in (upstream, client):
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                asking.join()

    def _ask(self, client: socket.socket, upstream: socket.socket, asked: threading.Event) -> None:
        try:
            while data := client.recv(65536):
                self._look(data)
                if self.refusing:
                    self._refuse(client)
                    return
                asked.set()
                upstream.sendall(data)
        except OSError:
            return
        finally:
            with contextlib.suppress(OSError):
                upstream.shutdown(socket.SHUT_RDWR)

    def _look(self, data: bytes) -> None:
        with self._lock:
            if self._wanted is not None and self._wanted in data.split(b"\r\n", 1)[0][:1024]:
                self._left -= 1
                if self._left <= 0:
                    self._wanted, self.refusing = None, True

    def _refuse(self, client: socket.socket) -> None:
        self.refused += 1
        client.sendall(REFUSAL)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(DRAIN_SECONDS)
        while client.recv(65536):  # with bytes of a request left unread, a reset would take the answer away
            pass

    def _answer(self, client: socket.socket, upstream: socket.socket, asked: threading.Event) -> None:
        while data := upstream.recv(65536):
            if self.refusing:
                return
            if asked.is_set() and self.slow is not None:
                self.slowed += 1
                self._pause(self.slow.first_byte_seconds)
            asked.clear()
            while data:
                slow = self.slow
                now = data if slow is None else data[: max(1, int(slow.bytes_per_second * TRICKLE_SECONDS))]
                client.sendall(now)
                data = data[len(now) :]
                if slow is not None:
                    self._pause(len(now) / slow.bytes_per_second)
                if self.refusing:
                    return

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.slow is not None and not self.refusing and time.monotonic() < until:
            time.sleep(max(0.0, min(TRICKLE_SECONDS, until - time.monotonic())))
