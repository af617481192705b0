"""HTTP to the API server: JSON in, JSON out, each call with a deadline, and retries of temporary failures.

Raw objects, no model classes: those cost more than the calls. `call` is for single requests, `stream` for watches. A request that is not in
`permissions.py` is refused before it is sent, and so is a write while this replica does not lead. Used by informers, `KubernetesCluster`, the
Lease and the event recorder, from many threads.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3
from kubernetes.client import Configuration
from kubernetes.utils.keepalive import tcp_keepalive_socket_options

from shoal.retries import Backoff, retry_after_seconds, retrying
from shoal_operator.engine import permissions
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.engine.connection import authorization, ssl_context
from shoal_operator.engine.kinds import Resource

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
"""Seconds for one attempt. Server-side apply takes milliseconds; an answer after ten seconds is from a server in trouble."""

LAST_SECONDS = 0.1
"""An attempt that begins at the end of the budget still has this long."""

BUDGET_SECONDS = 15.0
"""Seconds for a call with all its retries. After that the work queue's backoff waits instead."""

PAUSES = Backoff(0.1, 3.0)
RETRIED = frozenset({429, 500, 502, 503, 504})
LASTING = frozenset({400, 403, 413, 422})
"""Refusals that stand until someone changes the object, a quota, an admission rule or a permission."""
TERMINATING = "because it is being terminated"
"""In the refusal of new objects in a terminating namespace."""
UNMAPPED = "cannot find RESTMapping"
"""In the refusal of an object whose owner is of a kind that the API server's admission does not know yet: its CRD was just made or made again."""
CATCHES_UP_SECONDS = 5.0
"""After such a refusal, the longest wait. Admission looks for kinds each 30 seconds; a backoff that grew until then would wait as long again."""
UNREADABLE = ("failed to create typed patch object", "unable to convert unstructured object")
"""In the refusal of an applied object with a field that its kind does not have, or with a value that it cannot read: of a podTemplate's, say.
Its status is 500."""
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
READS = frozenset({"get", "list", "watch"})

APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"


JSON_LEVELS = 12_000
"""What can be read. API servers take up to 10,000 levels, wrap an object in two or three, and know no bound for fields that a CRD leaves open."""


def read_deep_json() -> None:
    """Let Python's own `json`, with which kopf reads, go as deep as an API server does: one tenant's object would end kopf for all.

    10,000 levels need less than 2 MiB of a thread's stack; threads have 8 MiB.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), JSON_LEVELS))


def parsed(data: bytes) -> Any:
    """JSON as objects; raises ValueError for what is none. `orjson` reads up to 1,024 levels."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError(f"has more than {JSON_LEVELS} levels") from error


class ApiError(ClusterError):
    """The API server refused. `status` is the HTTP status, 0 without an answer; `reason` is that of its `Status` object."""

    def __init__(self, text: str, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status, self.reason, self.retry_after = status, reason, retry_after
        self.lasting = status in LASTING or any(words in text for words in UNREADABLE)
        self.passing = not self.lasting or TERMINATING in text

    def with_cause(self, cause: str) -> "ApiError":
        """The same refusal, which says first what caused it: its text may be cut."""
        return ApiError(f"{cause}; {self}", self.status, self.reason, self.retry_after)


class NotLeader(ApiError):
    """A write was held back because this replica may no longer hold the Lease."""


class ApiServer:
    """One API server, by pooled connections."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        connections: int = 32,
        counted: Callable[[str, int], None] = lambda method, status: None,
    ) -> None:
        """`counted` gets method and status of each answer (status 0: no answer)."""
        self._configuration = configuration
        self._counted = counted
        self._host = configuration.host.rstrip("/")
        self._stopping = threading.Event()
        self.may_write: Callable[[], bool] = lambda: True
        tls: dict[str, Any] = {} if (context := ssl_context(configuration)) is None else {"ssl_context": context}
        if configuration.tls_server_name:
            tls["server_hostname"] = configuration.tls_server_name
        self._pool = urllib3.PoolManager(
            num_pools=2,
            maxsize=connections,
            retries=False,
            socket_options=[*urllib3.connection.HTTPConnection.default_socket_options, *tcp_keepalive_socket_options()],
            **tls,
        )

    def call(
        self,
        verb: str,
        resource: Resource,
        namespace: str | None,
        name: str | None = None,
        *,
        subresource: str | None = None,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        budget_seconds: float = BUDGET_SECONDS,
        fenced: bool = True,
    ) -> Object:
        """One request, retried within the budget while the server is unreachable, overloaded or restarting.

        Args:
            verb: as RBAC names it: get, list, create, update, patch, delete.
            fenced: whether a write needs the lease; the Lease's own calls do not.

        Raises:
            ApiError: refused, or not answered within the budget.
        """
        permissions.check(verb, resource, subresource)
        url = self._host + resource.path(namespace, name, subresource) + _query(query)
        data = None if body is None else orjson.dumps(body)
        what = f"{verb} {resource.kind} {namespace or '(all namespaces)'}/{name or ''}".rstrip("/")
        end = time.monotonic() + budget_seconds

        def once() -> Object:
            if fenced and verb not in READS and not self.may_write():
                raise NotLeader(f"{what}: not sent: another replica may be the leader by now")
            seconds = max(LAST_SECONDS, min(ANSWER_SECONDS, end - time.monotonic()))
            return self._once(METHODS[verb], url, what, data, content_type, seconds)

        def may_pass(error: BaseException) -> bool:
            # A create that was perhaps done is not sent twice; 429 says that it was not done.
            if not isinstance(error, ApiError) or isinstance(error, NotLeader) or error.lasting:
                return False
            return error.status == 429 or (verb != "create" and error.status in {0, *RETRIED})

        def pause(seconds: float) -> None:
            if self._stopping.wait(seconds):
                raise ApiError(f"{what}: given up: the operator is stopping")

        return retrying(
            may_pass,
            PAUSES,
            deadline_seconds=budget_seconds,
            asked=lambda error: error.retry_after if isinstance(error, ApiError) else None,
            pause=pause,
        )(once)

    def stream(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str | int], silence_seconds: float
    ) -> "Stream":
        """Begin a watch; raises ApiError when it does not begin. `silence_seconds`: the longest time without a byte."""
        permissions.check("watch", resource, None)
        what = f"watch {resource.kind} {namespace or '(all namespaces)'}"
        url = self._host + resource.path(namespace) + _query({**query, "watch": 1})
        try:
            answer = self._pool.request(
                "GET",
                url,
                headers=self._headers(),
                preload_content=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=silence_seconds),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._counted("GET", 0)
            raise ApiError(f"{what}: {_said(error)}") from error
        self._counted("GET", answer.status)
        if answer.status != 200:
            try:
                raise _refusal(what, answer.status, answer.read(1 << 16), answer.headers.get("Retry-After"))
            finally:
                answer.release_conn()
        return Stream(answer)

    def stop(self) -> None:
        """Stop waiting between attempts."""
        self._stopping.set()

    def _once(self, method: str, url: str, what: str, data: bytes | None, content_type: str, seconds: float) -> Object:
        headers = self._headers()
        if data is not None:
            headers["Content-Type"] = content_type
        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds)
        try:
            answer = self._pool.request(method, url, body=data, headers=headers, timeout=timeout)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._counted(method, 0)
            raise ApiError(f"{what}: {_said(error)}") from error
        self._counted(method, answer.status)
        if not 200 <= answer.status < 300:
            raise _refusal(what, answer.status, answer.data, answer.headers.get("Retry-After"))
        try:
            found = parsed(answer.data)
        except ValueError as error:
            raise ApiError(f"{what}: the answer is not JSON") from error
        if not isinstance(found, dict):
            raise ApiError(f"{what}: the answer is not an object")
        return found

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "shoal-operator"}
        if (header := authorization(self._configuration)) is not None:
            headers["Authorization"] = header
        return headers


class Stream:
    """Lines of a watch, as they come. Ends when the server ends it; raises ApiError when the connection breaks or is silent for too long."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer

    def lines(self) -> Iterator[bytes]:
        rest = b""
        try:
            for piece in self._pieces():
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line for line in whole if line)
        except urllib3.exceptions.ReadTimeoutError as error:
            raise Silence("the watch sent nothing for too long") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(f"the watch broke: {_said(error)}") from error
        if rest:
            raise ApiError("the watch ended in the middle of a line")

    def _pieces(self) -> Iterator[bytes]:
        """What has come so far, again and again. Without chunks (HTTP/1.0, some proxies) `stream` would wait until its buffer is full."""
        if getattr(self._answer, "chunked", False):
            yield from self._answer.stream(1 << 16)
        else:
            while piece := self._answer.read1(1 << 16):
                yield piece

    def close(self) -> None:
        """End it, from any thread."""
        try:
            self._answer.shutdown()
        except (OSError, ValueError, RuntimeError):
            pass  # it has ended by itself

    def release(self) -> None:
        """Drop the connection and whatever would still arrive on it."""
        self._answer.close()


class Silence(ApiError):
    """A watch that was silent and did not end."""


def _query(query: Mapping[str, str | int] | None) -> str:
    return f"?{urlencode(query)}" if query else ""


def _said(error: Exception) -> str:
    """The error's own words without the pool's address in memory."""
    reason = getattr(error, "reason", None)
    return f"{type(error).__name__}: {str(reason if isinstance(reason, Exception) else error).split('>: ')[-1]}"


def _refusal(what: str, status: int, data: bytes, retry_after: str | None) -> ApiError:
    reason, message = "", ""
    try:
        found = orjson.loads(data)
        reason, message = str(found.get("reason", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):
        message = data[:200].decode("utf-8", "replace")
    text = f"{what}: {status} {reason}: {message[:1000]}"
    if UNMAPPED in message:
        text += " (its CRD is new to the API server, which looks for such each 30 s)"
    elif status == 403 and " cannot " in message:
        text += " (the operator's account lacks this permission; apply the output of python -m shoal_operator.install)"
    return ApiError(text, status, reason, retry_after_seconds(retry_after))


def micro_time() -> str:
    """This moment as a `metav1.MicroTime`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
