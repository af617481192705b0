"""One HTTP request to a relay or the origin, with every way it can go wrong given a name.

In: a base URL, the path of a piece, bounds. Out: bytes of a small document, or a shard appended to a part file, from where the last try broke off
(RFC 9110 Range). A server is held to a size and to a least speed: an endless or dripping body ends here. Called by `transfer` and `relay`.
"""

import time
from collections.abc import Callable
from pathlib import Path

import httpx

CONNECT_SECONDS = 3.0
STALL_SECONDS = 10.0
"""No byte for so long ends a request: a relay that hangs must not hold a shard."""
PATIENCE_SECONDS = 20.0
SLOWEST_BYTES_PER_SECOND = 64 << 10
"""A request may take PATIENCE_SECONDS plus its size at this speed; below that another relay is the better choice."""


class NotYet(Exception):
    """404: the server does not have this piece, or not yet. No fault."""


class Denied(Exception):
    """401, 403 or 429: our token is not (or no longer) good, or we ask too much. No sign that the server is bad."""


class SourceFailed(Exception):
    """The server broke off, is away, or answered with something that cannot be what was asked for."""


class Downloader:
    """Requests that carry the present token. Safe to use from several threads."""

    def __init__(self, token: Callable[[], str | None], connections: int = 16) -> None:
        """`token` gives the word for `Authorization: Bearer`; it is asked before every request, because tokens live for seconds."""
        self._token = token
        self._http = httpx.Client(
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(STALL_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    def close(self) -> None:
        self._http.close()

    def document(self, base_url: str, path: str, max_bytes: int) -> bytes:
        """A small piece, at most `max_bytes` long. Raises `NotYet`, `Denied` or `SourceFailed`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        data = bytearray()
        with self._open(base_url, path, {}) as answer:
            answer.expect(200)
            for chunk in answer.chunks(deadline):
                data += chunk
                if len(data) > max_bytes:
                    raise SourceFailed(f"{path}: more than the {max_bytes} bytes that such a document can have")
        return bytes(data)

    def shard(self, base_url: str, path: str, size: int, part: Path, received: Callable[[int, int], None]) -> None:
        """Complete `part` to `size` bytes, asking only for what is missing.

        `received` is told, for every chunk, its bytes and how many bytes `part` has with it.
        What arrived before a failure stays in `part` for the next try. Raises as `document` does.
        """
        have = part.stat().st_size if part.exists() else 0
        if have > size:
            part.unlink()
            have = 0
        start = have
        if have == size:
            part.touch()
            return
        deadline = time.monotonic() + PATIENCE_SECONDS + (size - have) / SLOWEST_BYTES_PER_SECOND
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self._open(base_url, path, headers) as answer, part.open("ab") as file:
            if have and answer.status == 200:  # the server ignores Range: start over
                file.truncate(0)
                start = have = 0
            elif have:
                answer.expect(206)
                answer.expect_range(have, size)
            else:
                answer.expect(200)
            for chunk in answer.chunks(deadline):
                if have + len(chunk) > size:
                    file.truncate(start)  # who sends too much did not send the shard: keep none of it
                    raise SourceFailed(f"{path}: more than the {size} bytes of the shard")
                file.write(chunk)
                have += len(chunk)
                received(len(chunk), have)
        if have < size:
            raise SourceFailed(f"{path}: broke off after {have} of {size} bytes")

    def _open(self, base_url: str, path: str, headers: dict[str, str]) -> "_Answer":
        token = self._token()
        if token is not None:
            headers = {**headers, "Authorization": f"Bearer {token}"}
        # Compression would only help a server to send a bomb: weights do not compress.
        request = self._http.build_request(
            "GET", f"{base_url.rstrip('/')}/{path}", headers={**headers, "Accept-Encoding": "identity"}
        )
        return _Answer(self._http, request, path)


class _Answer:
    """A response being read; httpx's exceptions become ours."""

    def __init__(self, http: httpx.Client, request: httpx.Request, path: str) -> None:
        self._http = http
        self._request = request
        self._path = path
        self._response: httpx.Response | None = None

    def __enter__(self) -> "_Answer":
        try:
            self._response = self._http.send(self._request, stream=True)
        except httpx.HTTPError as error:
            raise SourceFailed(f"{self._path}: {type(error).__name__}: {str(error)[:200]}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._response is not None:
            self._response.close()

    @property
    def status(self) -> int:
        assert self._response is not None
        return self._response.status_code

    def expect(self, status: int) -> None:
        """Raise what fits when the status is another one."""
        if self.status == status:
            return
        if self.status == 404:
            raise NotYet(self._path)
        if self.status in (401, 403, 429):
            raise Denied(f"{self._path}: status {self.status}")
        raise SourceFailed(f"{self._path}: status {self.status}, expected is {status}")

    def expect_range(self, start: int, size: int) -> None:
        """Raise unless the body is exactly the bytes from `start` to the end of `size` bytes."""
        assert self._response is not None
        found = self._response.headers.get("content-range", "none")
        wanted = f"bytes {start}-{size - 1}/{size}"
        if found != wanted:
            raise SourceFailed(f"{self._path}: Content-Range is {found[:80]!r}, expected is {wanted!r}")

    def chunks(self, deadline: float) -> "_Chunks":
        assert self._response is not None
        return _Chunks(self._response, deadline, self._path)


class _Chunks:
    """The body in pieces, until its end, a failure, or the deadline (monotonic seconds)."""

    def __init__(self, response: httpx.Response, deadline: float, path: str) -> None:
        # As it comes off the connection: asked for chunks of a size, httpx drops the started one when the connection breaks.
        self._body = response.iter_raw()
        self._deadline = deadline
        self._path = path

    def __iter__(self) -> "_Chunks":
        return self

    def __next__(self) -> bytes:
        if time.monotonic() > self._deadline:
            raise SourceFailed(f"{self._path}: slower than {SLOWEST_BYTES_PER_SECOND >> 10} KiB/s")
        try:
            return next(self._body)
        except httpx.HTTPError as error:
            raise SourceFailed(f"{self._path}: {type(error).__name__}: {str(error)[:200]}") from error
