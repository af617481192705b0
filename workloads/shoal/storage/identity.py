"""Keys for an S3-compatible store: static ones from files, or temporary ones that a token service gives for a service account's token.

The exchange is `AssumeRoleWithWebIdentity` of the AWS Security Token Service (API version 2011-06-15), which MinIO has too. `storage/entra.py` has
another exchange behind the same `Renewing`. A kubelet renews the token's file. The token travels in the body of one request, never in a URL, a log
or an error. Keys are asked for again when two thirds of their life are over, by one thread; the others go on with the keys at hand. While the
service is away, keys are used until they end. The cost is one exchange in 40 minutes for each process that uses the store, whatever the run's size.
"""

import functools
import html
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlencode

import structlog
import urllib3

from shoal.contracts.storage import S3Storage, WorkloadIdentity
from shoal.retries import Backoff

TOKEN_FILE = "token"  # noqa: S105 - a file's name
REQUEST_SECONDS = 10.0
MAX_ANSWER_BYTES = 64 << 10
MAX_REASON = 300
RENEWED_AFTER = 2 / 3
"""Share of their life after which keys are asked for again."""
WAIT_SECONDS = 2 * REQUEST_SECONDS
"""How long a thread without keys waits for the one that asks for them."""
PAUSES = Backoff(1.0, 60.0)
"""Between failures. Until a pause is over, everybody gets the failure before: whoever asks for grants does not drive the service."""
PASSING_CODES = (
    "ExpiredTokenException",
    "ExpiredToken",
    "IDPCommunicationError",
    "Throttling",
    "ThrottlingException",
    "SlowDown",
)
"""Refusals that another try may fix: a kubelet renews its token, an identity provider comes back."""


class IdentityRefused(RuntimeError):
    """There are no keys for the store, and another try does not help; the message says what is missing or who refuses, and why."""


class TokenServiceAway(OSError):
    """The token service did not answer, or answered that it cannot now: another try may help."""


@dataclass(frozen=True)
class Keys:
    """What requests to the store are signed with. Its text shows nothing of it."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    """Travels with each request; by itself it opens nothing."""
    expires_unix: float | None = None


class Temporary(Protocol):
    """What a token service gives: it ends."""

    @property
    def expires_unix(self) -> float | None: ...


Held = TypeVar("Held", bound=Temporary)


class Identity(Protocol):
    """Who the store is asked as."""

    def keys(self) -> Temporary:
        """What requests are signed with, or carry, now; raises IdentityRefused and TokenServiceAway."""


class S3Identity(Protocol):
    """Who an S3-compatible store is asked as."""

    def keys(self) -> Keys:
        """Keys that hold now; raises IdentityRefused and TokenServiceAway."""


@dataclass(frozen=True)
class StaticKeys:
    """One pair of keys, for good."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)

    def keys(self) -> Keys:
        return Keys(self.access_key, self.secret_key)


class Renewing(Generic[Held]):
    """Temporary keys, asked for again in time. Safe to use from several threads.

    Args:
        service: URL of what gives the keys, for messages.
        exchange: one request to it; raises IdentityRefused and TokenServiceAway.
        clock: seconds since 1970.
    """

    def __init__(self, service: str, exchange: Callable[[], Held], clock: Callable[[], float]) -> None:
        self._service = service
        self._exchange = exchange
        self._clock = clock
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._renew_unix = 0.0
        self._failures = 0
        self._last_failure: IdentityRefused | TokenServiceAway | None = None

    def keys(self) -> Held:
        """Keys that hold now, however long; raises IdentityRefused and TokenServiceAway.

        The service is asked for others when two thirds of their life are over, or after a failure's pause; no caller can bring that forward.
        """
        if (held := self._at_hand()) is not None:
            return held
        # Whoever still has keys that hold does not wait for the thread that asks for others.
        held = self._holding()
        if not self._lock.acquire(timeout=0.0 if held is not None else WAIT_SECONDS):
            if held is not None:
                return held
            raise TokenServiceAway(
                f"token service {self._service} has not answered another thread of this process within {WAIT_SECONDS:g} s"
            )
        try:
            return self._at_hand() or self._renewed()
        finally:
            self._lock.release()

    def _at_hand(self) -> Held | None:
        """Keys, without a question to the service, or None when it is time to ask. Raises the last failure during its pause."""
        if self._clock() >= self._renew_unix:
            return None
        failure, held = self._last_failure, self._holding()
        if held is None and failure is not None:
            raise type(failure)(str(failure))
        return held

    def _holding(self) -> Held | None:
        """The keys of the last exchange, unless they have ended."""
        held = self._held
        if held is None:
            return None
        assert held.expires_unix is not None
        return held if self._clock() < held.expires_unix else None

    def _renewed(self) -> Held:
        now = self._clock()
        try:
            fresh = self._exchange()
        except (IdentityRefused, TokenServiceAway) as error:
            self._failures += 1
            self._last_failure = type(error)(str(error))  # the one that was raised holds the token in its frames
            self._renew_unix = self._clock() + PAUSES.after(self._failures)
            held = self._holding()
            if held is None:
                raise
            left = (held.expires_unix or now) - now
            structlog.get_logger().warning("store keys not renewed", error=str(error), seconds_left=round(left))
            return held
        assert fresh.expires_unix is not None
        self._failures, self._last_failure = 0, None
        self._held, self._renew_unix = fresh, now + RENEWED_AFTER * (fresh.expires_unix - now)
        return fresh


class WebIdentity(Renewing[Keys]):
    """Temporary S3 keys for the token in a file.

    Args:
        spec: the role, and the service that gives keys for it.
        token_file: the service account's token; read for each exchange.
        session: how the store's audit log calls whoever asks: at most 64 letters, digits and `=,.@_-`.
        clock: seconds since 1970.
    """

    def __init__(
        self, spec: WorkloadIdentity, token_file: Path, session: str, clock: Callable[[], float] = time.time
    ) -> None:
        called = re.sub(r"[^\w=,.@-]", "-", session, flags=re.ASCII)[:64]
        super().__init__(spec.sts_endpoint, lambda: _exchange(spec, token_file, called, clock), clock)


def identity_of(spec: S3Storage, pod: Path) -> S3Identity:
    """Who this process asks the store as: the files in `secrets/store/` decide between keys of its own and the run's workload identity.

    `pod` is the pod's folder (`SHOAL_HOME`). A part with keys of its own (`ui.credentialsSecret`) uses them. All stores and grants of a process share
    what one exchange gave.
    """
    folder = pod / "secrets" / "store"
    if spec.workload_identity is None or (folder / "accessKey").exists():
        return StaticKeys((folder / "accessKey").read_text().strip(), (folder / "secretKey").read_text().strip())
    return _shared(spec.workload_identity, folder / TOKEN_FILE, os.environ.get("SHOAL_POD") or "shoal")


@functools.cache
def _shared(spec: WorkloadIdentity, token_file: Path, session: str) -> WebIdentity:
    return WebIdentity(spec, token_file, session)


def _exchange(spec: WorkloadIdentity, token_file: Path, session: str, clock: Callable[[], float]) -> Keys:
    """One request to the token service; raises IdentityRefused and TokenServiceAway."""
    token = read_token(token_file, "storage.s3.workloadIdentity")
    asked = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": spec.role_arn,
        "RoleSessionName": session,
        "WebIdentityToken": token,
    }
    if spec.duration_seconds is not None:
        asked["DurationSeconds"] = str(spec.duration_seconds)
    where = f"token service {spec.sts_endpoint}"
    try:
        status, answer = post_form(spec.sts_endpoint, urlencode(asked), "application/xml")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise TokenServiceAway(f"{where} does not answer: {plain_reason(str(error), token)}") from None
    if status == 200:
        found = {name: _text(answer, name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")}
        if lacking := [name for name, value in found.items() if not value]:
            raise IdentityRefused(f"{where} answers without {', '.join(lacking)}: it is no security token service")
        try:
            expires = datetime.fromisoformat(found["Expiration"])
        except ValueError:
            raise IdentityRefused(f"{where} answers with an Expiration that is no time") from None
        expires_unix = (expires if expires.tzinfo else expires.replace(tzinfo=UTC)).timestamp()
        if expires_unix <= clock():
            ended = plain_reason(found["Expiration"], token)
            raise TokenServiceAway(f"{where} gives keys that ended at {ended}; compare its clock and this machine's")
        return Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], expires_unix)
    code, reason = _text(answer, "Code"), _text(answer, "Message")
    said = plain_reason(": ".join(each for each in (code, reason) if each) or f"status {status}", token)
    if status >= 500 or status == 429 or code in PASSING_CODES:
        raise TokenServiceAway(f"{where} cannot give keys now: {said}")
    raise IdentityRefused(f"{where} refuses role {spec.role_arn} to service account {spec.service_account}: {said}")


def read_token(token_file: Path, field_name: str) -> str:
    """The service account's token; raises IdentityRefused with the field that gives the pod one."""
    try:
        return token_file.read_text().strip()
    except OSError as error:
        why = f"there is no service account token at {token_file} ({error.strerror})"
        raise IdentityRefused(f"{why}: the pod needs the projected volume of {field_name}") from None


def post_form(url: str, body: str, accept: str) -> tuple[int, str]:
    """Status and the beginning of the answer, of type `accept`, to one request; raises urllib3's HTTPError and OSError."""
    with urllib3.PoolManager(timeout=REQUEST_SECONDS, retries=False) as client:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": accept}
        answer = client.request("POST", url, body=body, headers=headers, redirect=False, preload_content=False)
        try:
            return answer.status, answer.read(MAX_ANSWER_BYTES).decode(errors="replace")
        finally:
            answer.close()


def _text(answer: str, element: str) -> str:
    """Text of an element of the service's XML: flat, each name once. No parser, as a parser would also read what else is sent."""
    found = re.search(rf"<{element}>([^<]*)</{element}>", answer)
    return html.unescape(found[1]).strip() if found else ""


def plain_reason(text: str, token: str) -> str:
    """One short line without the token."""
    shown = text.replace(token, "(token)") if token else text
    return re.sub(r"[^\x20-\x7e]+", " ", shown)[:MAX_REASON]
