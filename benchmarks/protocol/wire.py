"""A small HTTP/1.1 client for many simulated nodes in one process: signed requests over one kept connection a node.

It exists because the load must cost less than what it measures: httpx takes half a millisecond a request. It speaks to our own services only,
which answer with a Content-Length.
"""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from shoal.contracts.base import Contract
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey

TRIES = 3
TIMEOUT_SECONDS = 40.0  # longer than a long poll


@dataclass
class Answer:
    status: int
    body: bytes
    seconds: float
    retry_after: float | None = None


@dataclass
class Wire:
    """One connection to one service, signed with one key. Requests go one after the other, whoever asks."""

    base_url: str
    key: PrivateKey
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, repr=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def ask(self, method: str, path: str, body: Contract | None = None, *, fresh: bool = False) -> Answer:
        """One request. A kept connection that the service has closed is opened again once; raises OSError, TimeoutError."""
        content = body.to_json() if body is not None else b""
        signed = sign_request(
            method=method,
            url=self.base_url + path,
            body=content,
            key=self.key,
            created_unix=int(time.time()),
            nonce=secrets.token_hex(16),
        )
        headers = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        if content:
            headers += "Content-Type: application/json\r\n"
        return await self.send(method, path, headers, content)

    async def send(self, method: str, path: str, headers: str, content: bytes) -> Answer:
        """One request with these header lines."""
        host = urlsplit(self.base_url).netloc
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
        started = time.perf_counter()
        for left in reversed(range(TRIES)):  # as a real client's
            try:
                answer = await self._exchange(head.encode() + content)
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if not left:
                    raise
        answer.seconds = time.perf_counter() - started
        return answer

    async def _exchange(self, data: bytes) -> Answer:
        async with self._turn, asyncio.timeout(TIMEOUT_SECONDS):
            if self._streams is None:
                parts = urlsplit(self.base_url)
                self._streams = await asyncio.open_connection(parts.hostname, parts.port)
            reader, writer = self._streams
            writer.write(data)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            body = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection", "").lower() == "close":
            self.close()
        wait = fields.get("retry-after")
        return Answer(int(lines[0].split()[1]), body, 0.0, float(wait) if wait else None)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
