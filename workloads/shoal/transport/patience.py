"""How long a service waits for a client, and how much it reads of one: connections are free for strangers, so none is held for nothing.

`PatientProtocol` bounds the head of a request in seconds and bytes, which the HTTP server by itself does not, and the time in which nothing of an
answer is taken; `within` bounds a body. Called by
`server.serve`, `server.BodyLimit` and the upload route.
"""

import asyncio
import resource
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""From a connection (or the first byte of a further request on it) to the end of the head: one packet, on any line that can carry rollouts."""
MAX_HEAD_BYTES = 64 << 10  # ours have less than two thousand
BODY_SECONDS = 30.0
"""For a whole JSON body: the largest, a verdict of 16 MiB, comes from inside the cluster. Also for the rest of one that was answered early."""
IDLE_SECONDS = 30.0  # between two pieces of an upload, or of an answer
TAKEN_BYTES = 64 << 10
"""Of an answer, or its rest, that a client must take in that time: 2 kB/s, where a line that carries rollouts has a hundred times as much."""
MOST_CONNECTIONS = 16_384
"""Open files asked for, as far as the machine allows: every node keeps a connection."""

WHOLE_BODY = "shoal.whole_body"
"""Key of a request's scope: its body came with its head, so that reading it waits for nobody."""

TOO_SLOW = (408, b"Request Timeout")
TOO_LONG = (431, b"Request Header Fields Too Large")


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with a bounded head, for clients that take their answers.

    A request that comes in one packet, as nearly all do, with an answer that leaves at once starts no timer.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    _taken_timer: asyncio.TimerHandle | None = None
    _untaken_bytes = 0
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_rest_timer()
        self._stop_taken_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_what_is_taken()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_taken_timer()
        self._look_at_rest()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # What came with the end of the head is body, and was taken off in `on_headers_complete`.
        if not self._in_head or not self._head_bytes:
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(*TOO_LONG)
        elif self._head_timer is None:
            self._head_begins()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head, self._head_bytes = False, 0
        if not self.flow.write_paused:  # who asks again goes on
            self._stop_taken_timer()
        self._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope[WHOLE_BODY] = True  # type: ignore[literal-required]  # our key beside ASGI's
        self._in_head = True  # the next one's; its time begins with its first byte, before it keep-alive's runs
        if self._rest_timer is not None:  # the answer is out: nothing else begins the keep-alive time again
            self._stop_rest_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """An answer may come before its request's body has (a refusal): what is left of the body is thrown away, and waited for this long."""
        super().on_response_complete()
        if self.cycle.response_complete and not self._in_head and self._rest_timer is None:
            self._rest_timer = self.loop.call_later(BODY_SECONDS, self.timeout_keep_alive_handler)
        self._look_at_rest()

    def _look_at_rest(self) -> None:
        """Of a whole answer what is still here must be taken too: to close a connection is to wait for that."""
        complete = self.cycle is not None and self.cycle.response_complete
        if complete and self._taken_timer is None and self.transport.get_write_buffer_size():
            self._look_what_is_taken()

    def _look_what_is_taken(self) -> None:
        """Begin the time in which the client takes some of what it was sent."""
        self._stop_taken_timer()
        self._untaken_bytes = self.transport.get_write_buffer_size()
        self._taken_timer = self.loop.call_later(IDLE_SECONDS, self._end_unless_taken)

    def _end_unless_taken(self) -> None:
        self._taken_timer = None
        left = self.transport.get_write_buffer_size()
        if left > max(0, self._untaken_bytes - TAKEN_BYTES):
            self.transport.abort()
        elif left:
            self._look_what_is_taken()

    def _stop_taken_timer(self) -> None:
        if self._taken_timer is not None:
            self._taken_timer.cancel()
            self._taken_timer = None

    def _stop_rest_timer(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _head_begins(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._refuse, *TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, reason: bytes) -> None:
        """Answer, if nobody else is at it, and close."""
        self._stop_timer()
        if self.transport is None or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(b"HTTP/1.1 %d %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % (status, reason))
        self.transport.close()


async def within(
    parts: AsyncIterator[bytes], seconds: Callable[[], float], idle_seconds: float = IDLE_SECONDS
) -> AsyncIterator[bytes]:
    """The parts of a body as they come; raises TimeoutError when one takes longer than `idle_seconds`, or all longer than `seconds()`.

    `seconds` is asked again for each part: how long an upload may take is known once its policy was read.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        left = began + seconds() - loop.time()
        if left <= 0:
            raise TimeoutError
        try:
            async with asyncio.timeout(min(left, idle_seconds)):
                part = await anext(parts)
        except (StopAsyncIteration, ClientDisconnect):
            return
        yield part


def allow_connections() -> None:
    """Raise this process's limit of open files to `MOST_CONNECTIONS`, or as near as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
