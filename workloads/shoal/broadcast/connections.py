"""Keep-alive connections to relays, and one request and answer over one of them.

In: a URL and headers. Out: an `Exchange` whose status is known and whose body waits to be read. A connection that the server closed while it was idle
is replaced once, unseen. An exchange can be broken off from another thread in any phase after the connection was made. Called by `download`.
"""

import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

CONNECT_SECONDS = 3.0
GATHER_BYTES, GATHER_SECONDS = 512 << 10, 0.25
"""A link brings a few packets at a time. Taking each at once costs more CPU time than all the rest. The kernel wakes us at a
low-water mark (SO_RCVLOWAT), or after this time, so that the pace of a slow link is known."""
RECORD_BYTES = 16 << 10
"""The longest record of TLS (RFC 8446, section 5.1). OpenSSL may have taken a part of one from the kernel, which then cannot count it."""
Place = tuple[str, str, int]


class Exchange:
    """One request on one connection. All methods but `break_off` belong to the thread that made it."""

    def __init__(self, owner: "Connections", place: Place, connection: http.client.HTTPConnection) -> None:
        self._owner = owner
        self._place = place
        self._connection = connection
        self._socket = connection.sock  # the connection forgets it as soon as the server says that it will close
        self._answer: http.client.HTTPResponse | None = None

    def send(self, target: str, headers: Mapping[str, str]) -> None:
        """Send the request and read status and headers."""
        self._connection.request("GET", target, headers=dict(headers))
        self._answer = self._connection.getresponse()

    @property
    def status(self) -> int:
        assert self._answer is not None
        return self._answer.status

    def header(self, name: str) -> str | None:
        assert self._answer is not None
        return self._answer.getheader(name)

    def read_into(self, buffer: memoryview) -> int:
        """Read bytes that have arrived, at most the buffer; waits only when nothing has. 0 at the end, whether it was to be expected or not."""
        answer = self._answer
        assert answer is not None
        if answer.isclosed():
            return 0
        if answer.chunked or answer.length is None:
            data = answer.read1(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        # `HTTPResponse.readinto` would wait until the buffer is full: then nobody sees how fast a body comes.
        count = int(answer.fp.readinto1(buffer[: answer.length])) if answer.length else 0
        answer.length -= count
        return count

    @property
    def length(self) -> int | None:
        """Bytes of the body that are still to come, None where the server did not say."""
        answer = self._answer
        assert answer is not None
        return None if answer.chunked else answer.length

    def read_body(self, buffer: memoryview) -> Iterator[memoryview]:
        """The rest of a body whose length is known, in pieces of `buffer` as full as is soon available; ends early where the connection does.

        An empty piece now and then says that nothing came for `GATHER_SECONDS`. Raises `TimeoutError` when nothing comes for the connection's limit.
        """
        answer = self._answer
        assert answer is not None
        assert answer.length is not None
        # The first read takes what was read ahead with the headers; from then on nothing but us reads from the socket.
        if count := self.read_into(buffer):
            yield buffer[:count]
            yield from self._gather(buffer, answer, count)

    def _gather(self, buffer: memoryview, answer: http.client.HTTPResponse, came: int) -> Iterator[memoryview]:
        raw, patience = self._socket, self._socket.gettimeout()
        ready = select.poll()
        ready.register(raw, select.POLLIN)
        tls = raw if isinstance(raw, ssl.SSLSocket) else None
        low_water, ahead = 1, RECORD_BYTES if tls else 0
        heard = time.monotonic()
        raw.settimeout(0)
        try:
            while answer.length:
                # As much as came so far: a peer that has just begun may not be allowed to send more before we read.
                wanted = max(1, min(len(buffer), GATHER_BYTES, answer.length, came) - ahead)
                if wanted != low_water:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
                    low_water = wanted
                if not (tls and tls.pending()):
                    ready.poll(GATHER_SECONDS * 1000)
                count, ended = _take(raw, buffer[: answer.length])
                answer.length, came = answer.length - count, came + count
                if count:
                    heard = time.monotonic()
                elif patience is not None and time.monotonic() - heard > patience:
                    raise TimeoutError(f"nothing came for {patience:g} s")
                yield buffer[:count]
                if ended:
                    return
        finally:
            if raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                raw.settimeout(patience)

    def break_off(self) -> None:
        """Wake whoever reads from this connection, with its end."""
        try:
            # Not `SSLSocket.shutdown`, which lets go of TLS: the reader would get what lies in the kernel as if it were the body.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended by itself

    def close(self, *, reuse: bool) -> None:
        """Give the connection back; it is kept if it may be used again and its answer was read to the end."""
        answer = self._answer
        read = answer is not None and (answer.isclosed() or answer.length == 0)
        if answer is not None:
            answer.close()
        self._owner.give_back(self._place, self._connection, keep=reuse and read and self._connection.sock is not None)


def _take(raw: socket.socket, buffer: memoryview) -> tuple[int, bool]:
    """Fill `buffer` with what is here, without waiting; how many bytes, and whether the connection has ended. A record of TLS comes at a time."""
    count = 0
    try:
        while count < len(buffer):
            more = raw.recv_into(buffer[count:])
            if not more:
                return count, True
            count += more
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    return count, False


class Connections:
    """Idle connections by scheme, host and port. Safe to use from several threads."""

    def __init__(
        self,
        kept_per_host: int,
        tls: ssl.SSLContext | None,
        stall_seconds: float,
        receive_buffer: int | None = None,
    ) -> None:
        """`receive_buffer`: bytes that the kernel may take of an answer before we read them; None: as it likes."""
        self._kept = kept_per_host
        self._receive_buffer = receive_buffer
        self._tls = tls
        self._stall_seconds = stall_seconds
        self._lock = threading.Lock()
        self._idle: dict[Place, list[http.client.HTTPConnection]] = {}

    def get(self, url: str, headers: Mapping[str, str], begin: Callable[[Exchange], None]) -> Exchange:
        """Ask; `begin` gets the exchange before it is sent, and may raise. Raises `OSError`, `HTTPException` or `ValueError`."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url[:80]!r} is not an http or https URL")
        place = (parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        idle = self._take(place)
        if idle is not None:
            try:
                return self._ask(place, idle, parts.path, headers, begin)
            except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError):
                pass  # closed by the server while it was idle; the last where a line with TLS was reset
        return self._ask(place, self._connect(place), parts.path, headers, begin)

    def give_back(self, place: Place, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(place, [])
            if keep and len(idle) < self._kept:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in (one for many in idle.values() for one in many):
            connection.close()

    def _take(self, place: Place) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._idle.get(place)
            return idle.pop() if idle else None

    def _connect(self, place: Place) -> http.client.HTTPConnection:
        scheme, host, port = place
        if scheme == "http":
            return self._connected(http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS))
        if self._tls is None:
            self._tls = ssl.create_default_context()
        # Its timeout holds for the handshake as a whole.
        return self._connected(http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=self._tls))

    def _connected(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        connection.connect()
        connection.sock.settimeout(self._stall_seconds)
        if self._receive_buffer is not None:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        return connection

    def _ask(
        self,
        place: Place,
        connection: http.client.HTTPConnection,
        target: str,
        headers: Mapping[str, str],
        begin: Callable[[Exchange], None],
    ) -> Exchange:
        exchange = Exchange(self, place, connection)
        try:
            begin(exchange)
            exchange.send(target, headers)
        except BaseException:
            connection.close()
            raise
        return exchange
