"""Caps on what a machine sends and receives: token buckets that all processes of a node share, and an HTTP transport that keeps to them.

In: the owner's caps (`config/lending.json`). `broadcast.download` pays for what it received, `CappedTransport` for all other
bodies. Headers, a few hundred bytes every ten seconds, are not counted. A bucket is eight bytes in a file under `run/`: the time, on the machine's
monotonic clock, at which all that was taken so far is paid for. Cost: about ten microseconds a piece. At 1 Gbit/s there are 240 pieces of 512 KiB
a second; the 65 GB of a 32B model at 100 Mbit/s are 124,000 pieces in 87 minutes.
"""

import fcntl
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from shoal.contracts.machine import Lending
from shoal.contracts.newer import from_newer_json

BURST_SECONDS = 0.25
"""What a line that was silent may make up for."""
PIECE_SECONDS, LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 0.1, 4 << 10, 512 << 10
"""What is sent or read at a time: a wait for it must not look like a silent peer."""
MOST_DEBT_SECONDS = 60.0
"""More than all that wait together can owe: a time that far ahead is from an earlier start of the machine, whose monotonic clock has begun again."""
LOCK_TRIES, LOCK_SECONDS = 100, 0.01
"""A process that was stopped while it held the lock must not stop the others: after a second they go on without."""
BUFFER_SECONDS, LEAST_BUFFER_BYTES = 0.5, 64 << 10
"""What the kernel may receive ahead of us: without a bound it takes megabytes a connection at the speed of the line."""
TIME = struct.Struct("<d")


class RateLimit:
    """A token bucket. Safe to use from several threads, and, with a file, by several processes."""

    def __init__(self, bytes_per_second: float, shared: Path | None = None) -> None:
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._paid_until = 0.0  # monotonic
        self._file = None if shared is None else os.open(shared, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    @property
    def piece(self) -> int:
        """Bytes to send or to read at a time."""
        return int(min(max(self.bytes_per_second * PIECE_SECONDS, LEAST_PIECE_BYTES), MOST_PIECE_BYTES))

    @property
    def receive_buffer(self) -> int:
        """Bytes that the kernel may hold for a connection."""
        return int(max(self.bytes_per_second * BUFFER_SECONDS / 4, LEAST_BUFFER_BYTES))

    def take(self, count: int) -> None:
        """Wait until these bytes are paid for; whoever came before is served before."""
        wait = self.reserve(count, time.monotonic())
        if wait > 0.0:
            time.sleep(wait)

    def reserve(self, count: int, now: float) -> float:
        """Seconds to wait before these bytes are paid for; they are taken."""
        with self._lock:
            locked = self._file is not None and self._locked(self._file)
            try:
                paid = max(self._read(), now - BURST_SECONDS)
                if paid > now + MOST_DEBT_SECONDS:
                    paid = now
                paid += count / self.bytes_per_second
                self._write(paid)
            finally:
                if self._file is not None and locked:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
        return max(0.0, paid - now)

    @staticmethod
    def _locked(file: int) -> bool:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_SECONDS)
            else:
                return True
        return False

    def _read(self) -> float:
        if self._file is None:
            return self._paid_until
        data = os.pread(self._file, TIME.size, 0)
        return float(TIME.unpack(data)[0]) if len(data) == TIME.size else 0.0

    def _write(self, paid: float) -> None:
        if self._file is None:
            self._paid_until = paid
        else:
            os.pwrite(self._file, TIME.pack(paid), 0)


@dataclass(frozen=True)
class Caps:
    """Limits of one node; None: no limit."""

    upload: RateLimit | None = None
    download: RateLimit | None = None

    def transport(self, verify: ssl.SSLContext | bool) -> httpx.BaseTransport | None:
        """A transport for `httpx.Client` that keeps to them; None where there is nothing to keep to."""
        if self.upload is None and self.download is None:
            return None
        return CappedTransport(self, verify)


NO_CAPS = Caps()


def caps_of(home: Path) -> Caps:
    """The caps of the node whose files are under `home`; a pool's pod has none. Raises ValueError for a file that is not the owner's."""
    try:
        lending = from_newer_json(Lending, (home / "config" / "lending.json").read_bytes())
    except FileNotFoundError:
        return NO_CAPS
    return caps(lending, home / "run")


def caps(lending: Lending, folder: Path | None = None) -> Caps:
    """Caps as the owner gave them; with a `folder` shared by all processes that name the same."""

    def limit(bits: int | None, name: str) -> RateLimit | None:
        if bits is None:
            return None
        return RateLimit(bits / 8, folder / f"{name}.rate" if folder is not None else None)

    return Caps(limit(lending.upload_bits, "upload"), limit(lending.download_bits, "download"))


class CappedTransport(httpx.BaseTransport):
    """httpx's own transport, whose bodies go out and come in at the capped rate."""

    def __init__(self, caps: Caps, verify: ssl.SSLContext | bool) -> None:
        self._caps = caps
        bound = caps.download.receive_buffer if caps.download is not None else None
        options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, bound)] if bound is not None else None
        self._inner = httpx.HTTPTransport(verify=verify, trust_env=False, socket_options=options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._caps.upload is not None:
            assert isinstance(request.stream, httpx.SyncByteStream)
            request.stream = PacedStream(request.stream, self._caps.upload)
        response = self._inner.handle_request(request)
        if self._caps.download is not None:
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = PacedStream(response.stream, self._caps.download)
        return response

    def close(self) -> None:
        self._inner.close()


class PacedStream(httpx.SyncByteStream):
    """A body, piece by piece, each of which is paid for before it is passed on."""

    def __init__(self, body: httpx.SyncByteStream, limit: RateLimit) -> None:
        self._body = body
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        size = self._limit.piece
        for part in self._body:
            for at in range(0, len(part), size):
                piece = part[at : at + size]
                self._limit.take(len(piece))
                yield piece

    def close(self) -> None:
        self._body.close()
