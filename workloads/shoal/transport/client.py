"""`SignedClient`: the one HTTP client of our parts.

It signs each try again (a nonce is never used twice), ignores proxy variables, and follows no redirects. It retries what another try can repair
(connection lost, 5xx, 429 with its Retry-After) with jittered pauses until the deadline. Every request of ours is idempotent by design, so a retry
is always safe. A 4xx is an answer: `Refused`, with the server's words.
"""

import secrets
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import structlog
from pydantic import ValidationError

from shoal.contracts.base import Contract
from shoal.contracts.newer import from_newer_json, not_known_here
from shoal.contracts.problems import ProblemDocument
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.installed import installed_release
from shoal.retries import Backoff, retry_after_seconds, retrying
from shoal.transport.authorities import well_known
from shoal.transport.bounded import UNENCODED, body_of
from shoal.transport.rate_limit import NO_CAPS, Caps

Reply = TypeVar("Reply", bound=Contract)

PAUSES = Backoff(0.1, 5.0)
SKEW_SECONDS = 30.0
"""A clock that differs from the server's by more is put right for signatures, whose window is a minute."""
MOST_SKEW_SECONDS = 900.0
"""By more than this it is not put right but reported: then it is wrong in ways that its owner should know."""
PIECE_BYTES = 64 << 10
MAX_REPLY_BYTES = 64 << 20  # a task table of some hundred thousand problems; everything else is small


class Refused(RuntimeError):
    """The server understood and said no (4xx). Callers decide by `code` (`contracts.problems.ProblemCode`, or one newer than it, or empty)."""

    def __init__(self, problem: ProblemDocument, retry_after: float | None = None, *, passing: bool = False) -> None:
        """`retry_after`: seconds that the server asked to wait. `passing`: another try may help; `SignedClient` makes it until its deadline."""
        words = f"{problem.status} {problem.title}"
        super().__init__(f"{words}: {problem.detail}" if problem.detail else words)
        self.problem = problem
        self.code = problem.code
        self.detail = problem.detail
        self.retry_after = retry_after
        self.passing = passing


class Unavailable(RuntimeError):
    """The server gave no usable answer until the deadline. `reason` is what the last try met."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class LaterReleaseError(Unavailable):
    """The answer asks for what this release does not know: the message says for what, and to upgrade."""


class NotSentInTime(Unavailable):
    """A body was not out by its deadline, and the rest of it was not sent."""


class SignedClient:
    """Requests to one server, signed with `key` when there is one. Safe to use from several threads."""

    def __init__(
        self,
        base_url: str,
        key: PrivateKey | None = None,
        *,
        timeout_seconds: float = 30.0,
        unix_socket: Path | None = None,
        tls: ssl.SSLContext | None = None,
        caps: Caps = NO_CAPS,
    ) -> None:
        """`base_url` has no trailing path. With `unix_socket` the connection goes there and `base_url` only names the host.

        `tls`: what the server's certificate is held to; None: well-known authorities. `caps` bound what goes over it, except over a Unix socket.
        """
        self.tls = tls
        self.caps = caps
        self.peer = ""  # address that the last answer came from; empty: none yet, or not known
        self._ahead = 0.0  # seconds by which the server's clock is ahead of ours, as far as signatures must follow it
        host = urlsplit(base_url).hostname or ""
        self._follows_clock = base_url.startswith("https:") or host == "localhost" or host.startswith("127.")
        self._base_url = base_url.rstrip("/")
        self._key = key
        verify = tls or well_known()
        transport = (
            httpx.HTTPTransport(verify, uds=str(unix_socket)) if unix_socket is not None else caps.transport(verify)
        )
        self._http = httpx.Client(
            transport=transport,
            verify=verify,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(timeout_seconds, connect=5.0),
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        body: Contract | None = None,
        reply: type[Reply] | None = None,
        *,
        deadline_seconds: float = 30.0,
        timeout_seconds: float | None = None,
    ) -> Reply | None:
        """Send `body`, parse the answer as `reply`; None for 204 (or without `reply`).

        `path` starts with `/` and may carry a query. `timeout_seconds` bounds one try (for long polls).
        An answer that only `tells` may have keys of a later release; of another they raise `LaterReleaseError`. Raises `Refused` for a 4xx and
        `Unavailable` after `deadline_seconds`.
        """
        response = self.request(
            method,
            path,
            body.to_json() if body is not None else b"",
            deadline_seconds=deadline_seconds,
            timeout_seconds=timeout_seconds,
        )
        if reply is None or response.status_code == 204:
            return None
        try:
            return from_newer_json(reply, response.content) if reply.tells else reply.from_json(response.content)
        except ValidationError as error:
            if unknown := not_known_here(error):
                raise LaterReleaseError(
                    f"{method} {self._base_url}{path}: the answer is not a {reply.__name__} that {installed_release()} knows: {unknown};"
                    " upgrade this machine to the run's release of shoal"
                ) from error
            raise Unavailable(
                f"{method} {self._base_url}{path}: the answer is not a {reply.__name__}: {error}"
            ) from error

    def request(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *,
        deadline_seconds: float = 30.0,
        timeout_seconds: float | None = None,
        send_seconds: float | None = None,
        content_type: str = "application/json",
    ) -> httpx.Response:
        """Send bytes of a type; returns a 2xx response. Raises as `call` does.

        `send_seconds` bounds the sending of a body as a whole, where `timeout_seconds` is for each wait of a try: then raises `NotSentInTime`.
        """
        url = self._base_url + path
        followed = False  # once a request: a server whose clock keeps moving is refusing us

        def once() -> httpx.Response:
            nonlocal followed
            response = self._try(method, url, content, timeout_seconds, send_seconds, content_type)
            if response.status_code == 401 and not followed and self._follow_clock(response):
                followed = True
                response = self._try(method, url, content, timeout_seconds, send_seconds, content_type)
            if response.status_code < 300:
                return response
            raise Refused(
                _problem(response),
                retry_after_seconds(response.headers.get("retry-after")),
                passing=response.status_code >= 500 or response.status_code == 429,
            )

        log = structlog.get_logger()
        return retrying(
            _may_pass,
            PAUSES,
            deadline_seconds=deadline_seconds,
            give_up=lambda error, waited: Unavailable(
                f"{method} {url}: no answer for {waited:.0f} s; last: {reason_of(error)}", reason_of(error)
            ),
            say=lambda error, _: log.debug("retrying", method=method, url=url, reason=reason_of(error)),
            asked=lambda error: error.retry_after if isinstance(error, Refused) else None,
        )(once)

    def _try(
        self,
        method: str,
        url: str,
        content: bytes,
        timeout_seconds: float | None,
        send_seconds: float | None,
        content_type: str,
    ) -> httpx.Response:
        headers = {"Content-Type": content_type, "Content-Length": str(len(content))} if content else {}
        headers |= UNENCODED
        if self._key is not None:
            headers |= sign_request(
                method=method,
                url=url,
                body=content,
                key=self._key,
                created_unix=int(time.time() + self._ahead),
                nonce=secrets.token_hex(16),
            )
        timeout = (
            httpx.Timeout(timeout_seconds, connect=5.0) if timeout_seconds is not None else httpx.USE_CLIENT_DEFAULT
        )
        body = content if send_seconds is None else _until(content, time.monotonic() + send_seconds)
        with self._http.stream(method, url, content=body, headers=headers, timeout=timeout) as response:
            self.peer = _peer(response)
            return httpx.Response(
                response.status_code, headers=response.headers, content=body_of(response, MAX_REPLY_BYTES)
            )

    def _follow_clock(self, response: httpx.Response) -> bool:
        """Whether our clock was off and signatures follow the server's from now on; another try is worth while then.

        Only where nobody in between can have written the time: who could make us sign for tomorrow could send our request again tomorrow.
        """
        if not self._follows_clock or self._key is None:
            return False
        try:
            ahead = parsedate_to_datetime(response.headers["date"]).timestamp() - time.time()
        except (KeyError, ValueError, TypeError):
            return False
        if abs(ahead - self._ahead) <= SKEW_SECONDS or abs(ahead) > MOST_SKEW_SECONDS:
            return False
        structlog.get_logger().warning("this machine's clock is off", server_ahead_seconds=round(ahead))
        self._ahead = ahead
        return True


def _until(content: bytes, until: float) -> Iterator[bytes]:
    """A body in pieces; raises `NotSentInTime` once the time is over."""
    for at in range(0, len(content), PIECE_BYTES):
        if time.monotonic() >= until:
            raise NotSentInTime(f"{at} of {len(content)} bytes were sent in time")
        yield content[at : at + PIECE_BYTES]


def _peer(response: httpx.Response) -> str:
    """The IP address at the other end of an answer's connection; empty for a Unix socket, and for one that was reset since."""
    stream = response.extensions.get("network_stream")
    try:
        address = stream.get_extra_info("server_addr") if stream is not None else None
    except OSError:  # asked of the socket
        return ""
    return str(address[0]) if isinstance(address, tuple) else ""


def _may_pass(error: BaseException) -> bool:
    """Whether another try may help."""
    if isinstance(error, Refused):
        return error.passing
    return isinstance(error, httpx.HTTPError)


def reason_of(error: BaseException) -> str:
    """In words, at most 300 characters of them."""
    return (str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}")[:300]


def _problem(response: httpx.Response) -> ProblemDocument:
    """The server's problem document, shortened; any other body is quoted. The status is that of the answer."""
    status = response.status_code
    try:
        found = ProblemDocument.model_validate_json(response.content)
    except ValidationError:
        return ProblemDocument(title=response.reason_phrase or "error", status=status, detail=response.text[:300])
    shortened = {"type": found.type[:200], "title": found.title[:200], "status": status, "detail": found.detail[:1000]}
    return found.model_copy(update=shortened)
