"""A socket that speaks TLS and takes many records from the kernel at a time.

In: a connected socket, whom to trust, and whose certificate it must be. Out: a socket for `http.client`. Called by `connections`.

Python's `SSLSocket` asks the kernel twice for each record of 16 KiB. This one takes half a megabyte at once and hands it to OpenSSL in memory.
What that saves is not measured apart from hashing once (docs/adr/0113). An idle connection holds 650 KiB, sixteen of them to one host 10 MiB.
"""

import socket
import ssl
import time
from typing import Any

RECEIVE_BYTES, FEED_BYTES = 512 << 10, 64 << 10
RECORD_BYTES = 16 << 10
"""The longest record of TLS (RFC 8446, section 5.1). A part of one may have been taken from the kernel, which then cannot count it."""


class TlsSocket(socket.socket):
    """Bytes of the peer whose certificate was checked. `sendall` and `recv_into` go through TLS; use no other method of a socket for bytes."""

    def __init__(self, line: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Take over the connected `line`; the handshake as a whole must end within its timeout. Raises `OSError`, of which `ssl.SSLError` is one."""
        seconds = line.gettimeout()
        super().__init__(line.family, line.type, line.proto, fileno=line.detach())
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._taken = self._buffer[:0]
        self._drained = True
        try:
            self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=host)
            self._shake_hands(seconds)
        except BaseException:
            self.close()
            raise
        self.settimeout(seconds)

    def _shake_hands(self, seconds: float | None) -> None:
        ends = None if seconds is None else time.monotonic() + seconds
        while True:
            if ends is not None and ends <= time.monotonic():
                raise TimeoutError(f"the TLS handshake was not done after {seconds:g} s")
            self.settimeout(None if ends is None else max(ends - time.monotonic(), 0.001))
            done = False
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self._send_on()  # an alert, too
            if done:
                return
            self._take()

    @property
    def drained(self) -> bool:
        """Whether everything that was taken from the kernel was read, except for a part of a record."""
        return self._drained

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of `data`; raises as `socket.sendall` does."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        self._send_on()

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of a socket: what is here and fits into `buffer`; 0 at the end, announced or not. A record of TLS comes at a time.

        Raises `ssl.SSLError` for bytes that are no TLS, else as `socket.recv_into` does.
        """
        while True:
            try:
                count = self._tls.read(nbytes or len(buffer), buffer)
            except ssl.SSLWantReadError:
                self._drained = True
            except ssl.SSLEOFError:
                return 0
            else:
                self._drained = False
                return int(count)
            self._send_on()
            self._take()

    def _take(self) -> None:
        """Give OpenSSL more, from the kernel when nothing is left."""
        if not self._taken:
            self._taken = self._buffer[: super().recv_into(self._buffer)]
        if not self._taken:
            self._arrived.write_eof()
            return
        self._arrived.write(self._taken[:FEED_BYTES])
        self._taken = self._taken[FEED_BYTES:]

    def _send_on(self) -> None:
        """What TLS has to say by itself, too: a peer may ask for new keys in the middle of a body."""
        if self._leaving.pending:
            super().sendall(self._leaving.read())
