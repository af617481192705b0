"""One HTTP request to a relay or the origin, with every way it can go wrong given a name.

In: a base URL, the path of a piece, bounds. Out: bytes of a small document, or a shard appended to its `ShardPart`, from where the last try broke off
(RFC 9110 Range). A server is held to a size, to a least speed and to a deadline, headers included. Any request can be cancelled
from another thread, whatever it is waiting for. It knows nothing of proxies. Called by `documents`, `transfer` and `relay`.
"""

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException

from shoal.broadcast.connections import Connections, Exchange
from shoal.broadcast.parts import ShardPart
from shoal.transport.rate_limit import RateLimit

STALL_SECONDS = 10.0
"""No byte for this long ends a request: a relay that hangs must not hold a shard."""
PATIENCE_SECONDS = 20.0
SLOWEST_BYTES_PER_SECOND = 64 << 10
"""A request may take PATIENCE_SECONDS plus its size at this speed; below that another relay is the better choice."""
DOCUMENT_SECONDS = 5.0
"""A document is a few hundred bytes to a few hundred KiB; a server that drips it holds up all that comes after."""
BUFFER_BYTES = 512 << 10
WATCH_SECONDS = 0.25


class NotYet(Exception):
    """404: the server does not have this piece, or not yet. No fault."""


class Denied(Exception):
    """401, 403 or 429: our token is not (or no longer) good, or we ask too much. No sign that the server is bad."""


class SourceFailed(Exception):
    """The server broke off, is away, or answered with something that cannot be what was asked for."""


class BrokenOff(SourceFailed):
    """The connection ended in the middle of a body that was right so far."""


class Cancelled(Exception):
    """`Attempt.cancel` was called."""


class Attempt:
    """A request that can be ended from another thread: by its deadline, or because nobody needs it any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchange: Exchange | None = None
        self.deadline = float("inf")
        self.cancelled = False
        self.expired = False

    def cancel(self) -> None:
        """End the request; the thread that waits for it gets `Cancelled`. Does nothing when it has ended."""
        with self._lock:
            self.cancelled = True
            self._break()

    def expire_after(self, now: float) -> None:
        """End the request if its deadline (monotonic seconds) is before `now`."""
        with self._lock:
            if now > self.deadline:
                self.expired = True
                self._break()

    def begin(self, exchange: Exchange) -> None:
        """The request goes over this connection now; raises `Cancelled` if it is not wanted any more."""
        with self._lock:
            if self.cancelled:
                raise Cancelled
            self._exchange = exchange

    def end(self) -> None:
        """The connection belongs to others from now on."""
        with self._lock:
            self._exchange = None

    def _break(self) -> None:
        if self._exchange is not None:
            self._exchange.break_off()


class Downloader:
    """Requests that carry the present token. Safe to use from several threads."""

    def __init__(
        self,
        token: Callable[[], str | None],
        connections: int = 16,
        tls: ssl.SSLContext | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        """`token` gives the word for `Authorization: Bearer`; it is asked before every request, because tokens live for seconds.

        `connections`: idle ones kept a host. `tls`: whose certificates https URLs are held to; None: those of the system. `limit` bounds what all
        requests together receive.
        """
        self._token = token
        self._limit = limit
        self._buffer_bytes = BUFFER_BYTES if limit is None else min(BUFFER_BYTES, limit.piece)
        bound = limit.receive_buffer if limit is not None else None
        self._connections = Connections(connections, tls, STALL_SECONDS, bound)
        self._lock = threading.Lock()
        self._running: set[Attempt] = set()
        self._watched = False

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def document(self, base_url: str, path: str, max_bytes: int) -> bytes:
        """A small piece, at most `max_bytes` long. Raises `NotYet`, `Denied` or `SourceFailed`."""
        with _Request(self, Attempt(), base_url, path, 0, 0) as request:
            request.expect(200)
            data, buffer = bytearray(), memoryview(bytearray(min(self._buffer_bytes, max_bytes + 1)))
            while count := request.read_into(buffer):
                self._pay(count)
                data += buffer[:count]
                if len(data) > max_bytes:
                    raise SourceFailed(f"{path}: larger than the {max_bytes} bytes that such a document may have")
            request.whole(len(data))
            return bytes(data)

    def has(self, base_url: str, path: str) -> bool:
        """Whether this server has the piece, of which nothing is read. Raises `Denied` or `SourceFailed`."""
        try:
            with _Request(self, Attempt(), base_url, path, 0, 0) as request:
                request.expect(200)
        except NotYet:
            return False
        return True

    def shard(
        self,
        base_url: str,
        path: str,
        size: int,
        part: ShardPart,
        received: Callable[[int], None],
        attempt: Attempt | None = None,
    ) -> None:
        """Complete `part` to `size` bytes, asking only for what is missing.

        `received` is told the bytes of every read. What arrived before a failure stays in `part` for the next try. Raises as `document` does,
        `BrokenOff` where a connection ended too soon, and `Cancelled` after `attempt.cancel()`.
        """
        if part.have > size:
            part.restart()
        if part.have == size:
            return
        try:
            with _Request(self, attempt or Attempt(), base_url, path, part.have, size - part.have) as request:
                if part.have and request.status == 200:  # the server ignores Range: start over
                    part.restart()
                elif part.have:
                    request.expect(206)
                    request.expect_range(part.have, size)
                else:
                    request.expect(200)
                request.expect_length(size - part.have)
                for data in request.body(memoryview(bytearray(min(self._buffer_bytes, size)))):
                    part.append(data)
                    received(len(data))
                    self._pay(len(data))
        finally:
            part.pause()
        if part.have < size:
            raise BrokenOff(f"{path}: broke off after {part.have} of {size} bytes")

    @property
    def in_flight(self) -> int | None:
        """How many shards at once are each fast enough not to be given up, under the limit; None: there is none."""
        return (
            None if self._limit is None else max(1, int(self._limit.bytes_per_second / (2 * SLOWEST_BYTES_PER_SECOND)))
        )

    def _pay(self, count: int) -> None:
        """Wait until the limit allows what was received. The server is held back by the window of its connection."""
        if self._limit is not None:
            self._limit.take(count)

    def started(self, attempt: Attempt) -> None:
        """Hold it to its deadline. The thread that does so lives while there are requests."""
        with self._lock:
            self._running.add(attempt)
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def ended(self, attempt: Attempt) -> None:
        with self._lock:
            self._running.discard(attempt)

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            with self._lock:
                running = list(self._running)
                if not running:
                    self._watched = False
                    return
            for attempt in running:
                attempt.expire_after(time.monotonic())


class _Request:
    """A request being made and its answer being read; exceptions of the library become ours."""

    def __init__(
        self, downloader: Downloader, attempt: Attempt, base_url: str, path: str, start: int, expected: int
    ) -> None:
        """For the bytes from `start` on; `expected` is how many, 0 for a document."""
        self._downloader = downloader
        self._attempt = attempt
        self._path = path
        self._base_url = base_url
        # Compression would only help a server to send a bomb: weights do not compress, deltas are compressed.
        self._headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        patience = PATIENCE_SECONDS if expected else DOCUMENT_SECONDS
        self._attempt.deadline = time.monotonic() + patience + expected / SLOWEST_BYTES_PER_SECOND
        self._exchange: Exchange | None = None

    def __enter__(self) -> "_Request":
        token = self._downloader._token()
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._downloader.started(self._attempt)
        try:
            self._exchange = self._downloader._connections.get(
                f"{self._base_url.rstrip('/')}/{self._path}", self._headers, self._attempt.begin
            )
        except Exception as error:
            self._leave()
            raise self._named(error) from error
        if self._attempt.cancelled or self._attempt.expired:  # headers that end where we ended them look like an answer
            self.__exit__(None, Cancelled(), None)
            raise self._named(None)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._exchange is not None:
            self._attempt.end()
            self._exchange.close(reuse=error is None)
        self._leave()

    def _leave(self) -> None:
        self._attempt.end()
        self._downloader.ended(self._attempt)

    @property
    def status(self) -> int:
        assert self._exchange is not None
        return self._exchange.status

    def expect(self, status: int) -> None:
        """Raise what fits when the status is another one."""
        if self.status == status:
            return
        if self.status == 404:
            raise NotYet(self._path)
        if self.status in (401, 403, 429):
            raise Denied(f"{self._path}: status {self.status}")
        raise SourceFailed(f"{self._path}: status {self.status}; expected {status}")

    def expect_range(self, start: int, size: int) -> None:
        """Raise unless the body is exactly the bytes from `start` to the end of `size` bytes."""
        assert self._exchange is not None
        found = self._exchange.header("content-range") or "none"
        wanted = f"bytes {start}-{size - 1}/{size}"
        if found != wanted:
            raise SourceFailed(f"{self._path}: Content-Range is {found[:80]!r}; expected {wanted!r}")

    def read_into(self, buffer: memoryview) -> int:
        """Some bytes of the body; 0 at its end, which an honest and a broken connection have in common."""
        assert self._exchange is not None
        try:
            count = self._exchange.read_into(buffer)
        except Exception as error:
            raise self._named(error) from error
        if self._attempt.cancelled or self._attempt.expired:  # then the end is of our own making
            raise self._named(None)
        return count

    def expect_length(self, size: int) -> None:
        """Raise unless the server says that exactly `size` bytes will come; nginx always says how many."""
        assert self._exchange is not None
        if self._exchange.length != size:
            raise SourceFailed(f"{self._path}: Content-Length is {self._exchange.length}; expected {size}")

    def body(self, buffer: memoryview) -> Iterator[memoryview]:
        """The announced body as it comes; ends where the connection does."""
        assert self._exchange is not None
        pieces = self._exchange.read_body(buffer)
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:
                raise self._named(error) from error
            if self._attempt.cancelled or self._attempt.expired:  # then the end is of our own making
                raise self._named(None)
            if piece is None:
                return
            if piece:
                yield piece

    def whole(self, size: int) -> None:
        """Raise when the server announced more than the `size` bytes that came."""
        assert self._exchange is not None
        announced = self._exchange.header("content-length")
        if announced is not None and announced != str(size):
            raise SourceFailed(f"{self._path}: broke off after {size} of {announced[:20]} bytes")

    def _named(self, error: BaseException | None) -> BaseException:
        if self._attempt.cancelled:
            return Cancelled(self._path)
        if self._attempt.expired:
            return SourceFailed(
                f"{self._path}: did not arrive by its deadline; slower than {SLOWEST_BYTES_PER_SECOND >> 10} KiB/s"
            )
        if isinstance(error, OSError | HTTPException | ValueError):
            return SourceFailed(f"{self._path}: {type(error).__name__}: {str(error)[:200]}")
        assert error is not None
        return error
