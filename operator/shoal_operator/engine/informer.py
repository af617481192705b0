"""Keeps the cache of one kind of children right: one list, then one watch after the other, forever.

A list is taken in pages; a watch continues from its resourceVersion, with bookmarks. When the server no longer has that version (410 Gone), or
a watch fell silent, the list is taken again: what is not on it any more is gone. Everything else that goes wrong is tried again with
backoff. One thread each, started by `manager.py`.
"""

import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shoal.retries import Backoff
from shoal_operator.engine.api_server import ApiError, ApiServer, Silence, Stream, parsed
from shoal_operator.engine.cache import Cache
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.kinds import Key, Resource

log = logging.getLogger(__name__)

PAGE = 500
"""Objects per page: a few megabytes of JSON at once."""

WATCH_SECONDS = 300
"""A watch is asked to end after about this long (up to a quarter less, so that they do not all end at once)."""

SILENCE_SECONDS = 100.0
"""API servers send a bookmark about once a minute; a connection without a byte for this long is dead."""

DEAF_SECONDS = 300.0
"""With no sign of life from any watch of a kind for this long, liveness fails: a restart is better than a cluster that is not seen."""

SHORT_SECONDS = 1.0
"""A watch that ends sooner than this is not begun again at once: a server that is shutting down ends them all."""

FAILURES_BEFORE_LIST = 3
"""After this many consecutive failures at one version, the list is taken again."""

LACKING = (403, 404)
"""What an API server says of a kind that it does not serve, and to an account that may not list it."""
LACKING_SECONDS = 60.0
"""At least this often such a kind is looked for, by one request of each replica; within the first minute after it was there more often."""


@dataclass(frozen=True)
class Timing:
    """Seconds; shorter ones are for tests."""

    watch: int = WATCH_SECONDS
    silence: float = SILENCE_SECONDS
    first_retry: float = 0.2
    max_retry: float = 15.0
    lacking: float = LACKING_SECONDS


def pages(
    api: ApiServer, resource: Resource, namespace: str | None, selector: Mapping[str, str | int] = MappingProxyType({})
) -> Iterator[Object]:
    """The list of a resource, page by page; raises ApiError, with 410 when the pages expired while they were read."""
    token = ""
    while True:
        query = {**selector, "limit": PAGE} | ({"continue": token} if token else {})
        page = api.call("list", resource, namespace, query=query)
        yield page
        token = page["metadata"].get("continue") or ""
        if not token:
            return


class _Relist(Exception):
    """The list must be taken again."""


class Informer:
    """List and watch of one resource, in one namespace or in all."""

    def __init__(
        self,
        api: ApiServer,
        cache: Cache,
        resource: Resource,
        namespace: str | None,
        selector: str = "",
        *,
        optional: bool = False,
        timing: Timing = Timing(),
    ) -> None:
        """`optional`: of a kind that the cluster may lack. It is then looked for again and again."""
        self._optional, self.missing = optional, False
        self._api, self._cache, self.resource, self.namespace = api, cache, resource, namespace
        self._selector: dict[str, str | int] = {"labelSelector": selector} if selector else {}
        self._timing = timing
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._version = ""
        self._said = ""
        self._backoff = Backoff(timing.first_retry, timing.max_retry)
        self._lacking = Backoff(timing.first_retry, timing.lacking)
        self.synced = threading.Event()
        """Set once the first list is in the cache."""
        self.heard_at = time.monotonic()
        """When the watch last showed activity: an event, a bookmark, its own end, or a refusal. Silence does not count."""
        self.event_at = time.monotonic()
        """When the last event or bookmark came."""
        self._thread = threading.Thread(target=self.run, name=f"informer-{resource.kind}", daemon=True)

    def __str__(self) -> str:
        return f"{self.resource.kind} in {self.namespace or 'all namespaces'}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; the thread ends soon after."""
        self._stopping.set()
        if (stream := self._stream) is not None:
            stream.close()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        """False when the thread has ended unexpectedly."""
        return self._thread.is_alive() or not self._thread.ident or self._stopping.is_set()

    def run(self) -> None:
        """List and watch until stopped."""
        version = ""
        while not self._stopping.is_set():
            try:
                if not version:
                    version = self._list()
                    self.missing = False
                    self._lacking.reset()
                    self.synced.set()
                began = time.monotonic()
                version = self._watch(version)
                if time.monotonic() - began < SHORT_SECONDS:
                    self._pause(self._backoff.next())
                else:
                    self._backoff.reset()
            except _Relist as why:
                log.info("%s: listed again: %s", self, why)
                version = ""
                self._pause(self._backoff.next())
            except ApiError as error:
                if self._optional and error.status in LACKING:
                    self._lack()
                # A dead connection says nothing about what it should have carried: the list is safe, the old version may not be.
                silent = isinstance(error, Silence)
                lost = silent or self.missing or self._backoff.failures >= FAILURES_BEFORE_LIST
                version = "" if lost else self._version
                if not silent:
                    self.heard_at = time.monotonic()
                if self.missing and error.status in LACKING:
                    wait = self._lacking.next()
                else:
                    wait = error.retry_after if error.retry_after is not None else self._backoff.next()
                    self._say(str(error), wait)
                self._pause(wait)
            except Exception:
                # A defect of ours in one event must not end the watch of a kind.
                log.exception("%s: unexpected", self)
                version = ""
                self._pause(self._backoff.next())

    def lacks(self, kind: str, namespace: str) -> bool:
        """Whether this watch is that of a kind in a namespace, and the cluster does not serve it there, or not to this account."""
        return self.missing and self.resource.kind == kind and self.namespace in (None, namespace)

    def _lack(self) -> None:
        """The cluster does not have the kind, or this account's permissions do not name it, maybe for the moment of an upgrade: nothing is known."""
        if not self.missing:
            log.info("%s: not served here, or not to this account; looked for again", self)
        # First it is said: who finds no object must not take it for deleted.
        self.missing, self.event_at = True, time.monotonic()
        self._cache.forget(self.resource.kind, self.namespace)
        self.synced.set()

    def _list(self) -> str:
        """Take the whole list into the cache; returns its version."""
        version = ""
        listed: set[Key] = set()
        try:
            for page in pages(self._api, self.resource, self.namespace, self._selector):
                for found in page.get("items") or ():
                    # Items of a list carry neither kind nor version of the API.
                    found["kind"], found["apiVersion"] = self.resource.kind, self.resource.api_version
                    listed.add(Key(self.resource.kind, found["metadata"]["namespace"], found["metadata"]["name"]))
                    self._cache.observe("LISTED", found)
                version = str(page["metadata"]["resourceVersion"])
        except ApiError as error:
            self._version = ""
            if error.status == 410:
                raise _Relist("its pages expired while they were read") from error
            raise
        self._version = version
        self._cache.retain(self.resource.kind, self.namespace, listed, int(self._version))
        return self._version

    def _watch(self, version: str) -> str:
        """Follow one watch to its end; returns the version to continue from."""
        self._version = version
        seconds = round(self._timing.watch * (1 - 0.25 * random.random()))
        query: dict[str, str | int] = {
            **self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, seconds),
        }
        try:
            stream = self._api.stream(self.resource, self.namespace, query, self._timing.silence)
        except ApiError as error:
            if error.status == 410:
                raise _Relist("its resource version has expired") from error
            raise
        self._stream = stream
        self._said = ""
        try:
            if not self._stopping.is_set():
                for line in stream.lines():
                    self._take(line)
                    self.heard_at = self.event_at = time.monotonic()
                    self._backoff.reset()
            self.heard_at = time.monotonic()
        finally:
            self._stream = None
            stream.release()
        return self._version

    def _take(self, line: bytes) -> None:
        try:
            event = parsed(line)
            kind, found = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(f"the watch sent no event but {line[:80]!r}") from error
        if kind == "ERROR":
            if found.get("code") == 410:
                raise _Relist("its resource version has expired")
            raise ApiError(f"the watch ended with {found.get('code')} {found.get('reason')}: {found.get('message')}")
        if kind != "BOOKMARK":
            self._cache.observe(kind, found)
        self._version = str(found["metadata"]["resourceVersion"])

    def _say(self, text: str, wait: float) -> None:
        """Log a failure; the same one in a row only once, as an API server that is away fails every watch of every kind."""
        if not self._stopping.is_set():
            level = logging.DEBUG if text == self._said else logging.WARNING
            log.log(level, "%s: %s; retrying in %.1f s and later", self, text, wait)
        self._said = text

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)
