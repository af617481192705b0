"""Holds what kopf passes on of our own kinds against a list: kopf does not report what was deleted while its watch was broken.

One thread lists each own kind when the operator starts, after kopf listed it again, and every two minutes. What is not on the list leaves the cache.
What is on it must have come by kopf: nothing is ready before that, and kopf is started again when it stays silent. Made by `manager.py`.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal_operator.engine.api_server import ApiError, ApiServer
from shoal_operator.engine.cache import Cache
from shoal_operator.engine.informer import DEAF_SECONDS, pages
from shoal_operator.engine.kinds import Key, Resource

log = logging.getLogger(__name__)

NOT_FOUND = 404


@dataclass(frozen=True)
class RelistTiming:
    """Seconds; shorter ones are for tests."""

    period: float = 120.0
    """Between two lists: the longest time until an owner that is gone is found out. A thousand pools are some MB of JSON."""
    after_kopf: float = 2.0
    """From kopf's list to ours: one of ours answers all events of one of kopf's."""
    look: float = 0.05
    """Between looks whether kopf has passed on what was listed."""
    silence: float = 30.0
    """kopf passes on some hundred objects a second; with none for this long, and some to come, it is started again."""
    retry: float = 2.0
    """After a list that failed, which the call itself tried for 15 s. Also between lists of a kind whose CRD is missing."""


@dataclass
class WatchedKind:
    """What is known of one own kind, in one namespace or in all."""

    resource: Resource
    namespace: str | None
    heard_at: float
    """When kopf was last right: it passed something on, or nothing was to come, or the API server gave no list."""
    event_at: float
    """When kopf last passed something on, or a list agreed with what it had passed on."""
    passed_at: float
    expected: dict[Key, int] = field(default_factory=dict)
    """Listed objects with their versions that kopf has not passed on yet."""
    synced: threading.Event = field(default_factory=threading.Event)
    """Set once kopf has passed on the first list, or the CRD turned out to be missing."""
    missing: bool = False
    """The CRD is not there."""
    back: bool = False
    """It was missing, and has been listed once since."""
    soon: bool = False
    due: float = 0.0

    def __str__(self) -> str:
        return f"{self.resource.kind} in {self.namespace or 'all namespaces'}"


class Relister:
    """Lists own kinds and compares; `passed` gets each event of kopf's."""

    def __init__(
        self,
        api: ApiServer,
        cache: Cache,
        places: Iterable[tuple[Resource, str | None]],
        restart: Callable[[str], None],
        *,
        timing: RelistTiming = RelistTiming(),
    ) -> None:
        """`restart(why)` starts kopf again, and returns at once."""
        self._api, self._cache, self._restart, self._timing = api, cache, restart, timing
        now = time.monotonic()
        self.places = [WatchedKind(resource, namespace, now, now, now) for resource, namespace in places]
        self._by_name = {(place.resource.kind, place.namespace): place for place in self.places}
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self.run, name="relist", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it ends soon after."""
        self._stopping.set()
        self._wake.set()

    def passed(self, event: str, key: Key) -> None:
        """Note an event that kopf passed on. One of a list that kopf took again asks for a list of ours: deletions may have been missed."""
        place = self._by_name.get((key.kind, key.namespace)) or self._by_name.get((key.kind, None))
        if place is None:
            return
        place.passed_at = place.event_at = place.heard_at = time.monotonic()
        if event == "LISTED" and place.synced.is_set() and not place.soon:
            place.soon = True
            self._wake.set()

    def all_soon(self) -> None:
        """List every kind soon: kopf was started again."""
        for place in self.places:
            place.soon = True
        self._wake.set()

    def unhealthy(self) -> list[str]:
        """What a restart of the process would heal."""
        now = time.monotonic()
        wrong = [
            f"kopf has delivered no event of {place} for {now - place.heard_at:.0f} s"
            for place in self.places
            if now - place.heard_at > DEAF_SECONDS
        ]
        if self._thread.ident and not self._thread.is_alive() and not self._stopping.is_set():
            wrong.append("the operator no longer lists its own kinds")
        return wrong

    def run(self) -> None:
        """Look at each kind when it is due, until stopped."""
        while not self._stopping.is_set():
            self._wake.clear()
            for place in self.places:
                if place.soon and not place.expected:
                    place.soon = False
                    place.due = min(place.due, time.monotonic() + self._timing.after_kopf)
                if time.monotonic() >= place.due:
                    place.due = time.monotonic() + self.look(place)
            self._wake.wait(max(0.0, min(place.due for place in self.places) - time.monotonic()))

    def look(self, place: WatchedKind) -> float:
        """Compare once; returns the seconds until the next time."""
        if place.expected:
            if self._agrees(place):
                return self._timing.period * random.uniform(0.8, 1.2)
            if time.monotonic() - place.passed_at < self._timing.silence:
                return self._timing.look
            key = next(iter(place.expected))
            place.expected = {}
            self._restart(f"kopf delivered no event of {place} for {self._timing.silence:.0f} s, although {key} exists")
        try:
            self._list(place)
        except ApiError as error:
            place.heard_at = time.monotonic()
            if error.status == NOT_FOUND:
                self._note_missing(place)
            else:
                log.warning("%s: the list failed: %s; retrying in %.0f s", place, error, self._timing.retry)
            return self._timing.retry
        if place.missing:
            # Discovery, where kopf looks for kinds, follows a list by a moment.
            if not place.back:
                place.back = True
                return self._timing.retry
            place.missing = place.back = False
            self._restart(f"the CRD of {place.resource.kind} is back")
        return 0.0 if place.expected else self._timing.period if self._agrees(place) else self._timing.look

    def _list(self, place: WatchedKind) -> None:
        expected: dict[Key, int] = {}
        version = 0
        for page in pages(self._api, place.resource, place.namespace):
            for found in page.get("items") or ():
                metadata = found["metadata"]
                key = Key(place.resource.kind, metadata["namespace"], metadata["name"])
                expected[key] = int(metadata["resourceVersion"])
            version = int(page["metadata"]["resourceVersion"])
        self._cache.retain(place.resource.kind, place.namespace, set(expected), version)
        place.passed_at = time.monotonic()
        place.expected = expected

    def _agrees(self, place: WatchedKind) -> bool:
        """Whether kopf has passed on all that was listed."""
        place.expected = {
            key: version for key, version in place.expected.items() if not self._cache.knows(key, version)
        }
        if place.expected:
            return False
        place.heard_at = place.event_at = time.monotonic()
        place.synced.set()
        return True

    def _note_missing(self, place: WatchedKind) -> None:
        place.back = False
        place.expected = {}
        place.synced.set()
        if not place.missing:
            place.missing = True
            log.error(
                "the CRD %s.%s is missing: the operator serves every kind but %s. Apply the CRD again with `helm upgrade` or "
                "`kubectl apply --server-side -f crds/`; the operator serves the kind again a few seconds later",
                place.resource.plural, place.resource.group, place,
            )  # fmt: skip
