"""Warnings that others wrote: the Events of a namespace, read by one request for all that stands in it. Used by `KubernetesCluster`.

Events are in no cache, and an API server looks at all of a namespace's to answer about one object. So one request gives what all its workloads and
pods ask. Where a namespace has more Warnings than a page, objects are asked about one by one. Cost: at 1,000 runs in a namespace one request in 5 s,
and up to 500 KB; none where all is well. A slow namespace is read more seldom, and delays only those who ask about it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from shoal_operator.engine.api_server import ApiError, ApiServer
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.kinds import EVENT

AGAIN_SECONDS = 5.0
"""How soon the Warnings of a namespace are read again."""

OBJECT_SECONDS = 20.0
"""How soon those about one object are, in a namespace with more than a page."""

READ_SHARE = 0.05
"""Part of the time that reading one namespace may take. An API server with 50,000 Events there needs a second for a page."""

BUDGET_SECONDS = 3.0
"""For one request, with its retries: a run must not wait long for words that it can do without."""

PAGE = 500
"""Warnings that are read at once. Whoever writes them repeats itself in series."""

MOST_PLACES = 256
"""Namespaces and single objects that are remembered, up to 500 KB each; beyond it all are asked about again."""


@dataclass(frozen=True)
class Warned:
    """A Warning, with when it was seen last."""

    reason: str = ""
    note: str = ""
    at: str = ""

    def since(self, since: datetime | None) -> tuple[str, str]:
        """Reason and note; empty where it is older. One whose time nobody can read counts as new."""
        try:
            at = datetime.fromisoformat(self.at) if since is not None and self.at else None
        except ValueError:
            at = None
        old = since is not None and at is not None and at.tzinfo is not None and at < since
        return ("", "") if old else (self.reason, self.note)


@dataclass
class Told:
    """What one request gave. `whole`: there were no more. The lock is that of whoever reads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    again_at: float = float("-inf")
    found: Mapping[str, Sequence[Warned]] = field(default_factory=dict)
    whole: bool = True


class WarningEvents:
    """Safe for threads."""

    def __init__(self, api: ApiServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock, self._lock = api, clock, threading.Lock()
        self._told: dict[tuple[str, str], Told] = {}
        """By namespace, and name of the object; that is empty for all of a namespace."""

    def about(self, namespace: str, about: Object, reason: str, since: datetime | None) -> tuple[str, str]:
        """Reason and note of the newest Warning about an object, of one reason where that is given; empty for none. What was said last stands where
        the API server does not answer. An object whose uid is not known is found by kind and name."""
        metadata = about["metadata"]
        key = metadata.get("uid") or f"{about['kind']}/{metadata['name']}"
        told = self._read(namespace, "")
        if not told.whole:
            told = self._read(namespace, metadata["name"])
        said = [each for each in told.found.get(key, ()) if reason in ("", each.reason)]
        return max(said, key=lambda each: each.at, default=Warned()).since(since)

    def _read(self, namespace: str, name: str) -> Told:
        with self._lock:
            if len(self._told) > MOST_PLACES:
                self._told.clear()
            told = self._told.setdefault((namespace, name), Told())
        with told.lock:
            began = self._clock()
            if began < told.again_at:
                return told
            selected = "type=Warning" + (f",regarding.name={name}" if name else "")
            query: dict[str, str | int] = {"fieldSelector": selected, "limit": PAGE}
            try:
                page = self._api.call("list", EVENT, namespace, query=query, budget_seconds=BUDGET_SECONDS)
                told.found = by_object(page.get("items", ()))
                told.whole = not page.get("metadata", {}).get("continue")
            except ApiError:
                pass  # away, overloaded, or permissions of an earlier release: the reconcile goes on
            now = self._clock()
            told.again_at = now + max(OBJECT_SECONDS if name else AGAIN_SECONDS, (now - began) / READ_SHARE)
            return told


def by_object(events: Sequence[Object]) -> dict[str, list[Warned]]:
    """Warnings by the uid of what they are about, and by its kind and name. Controllers still write the fields of the older API."""
    found: dict[str, list[Warned]] = {}
    for event in events:
        seen = (event.get("series") or {}).get("lastObservedTime") or event.get("deprecatedLastTimestamp")
        at = seen or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        warned = Warned(str(event.get("reason") or "Warning"), str(event.get("note") or ""), str(at or ""))
        about = event.get("regarding", {})
        for key in (about.get("uid"), f"{about.get('kind')}/{about.get('name')}"):
            if key:
                found.setdefault(key, []).append(warned)
    return found
