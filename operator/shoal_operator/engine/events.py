"""Kubernetes Events (events.k8s.io/v1), few and deduplicated: one for each transition of a condition that people wait for.

The same transition of the same object within half an hour is the same Event, counted as a series. They are written by a thread of its own, and
dropped when the API server is too slow for them: an Event is a courtesy, status has the facts. Called by `KubernetesCluster.apply_status`.
"""

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shoal_operator.engine.api_server import MERGE_PATCH, ApiError, ApiServer, micro_time
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.kinds import EVENT

log = logging.getLogger(__name__)

REPORTED = (
    "Ready",
    "Prepared",
    "Suspended",
    "Paused",
    "Stalled",
    "Stable",
    "Exchanging",
    "Complete",
    "Failed",
    "UpToDate",
    "Fits",
    "VolumesReady",
    "Exposed",
    "Learning",
    "StalledOnSignal",
    "Queued",
)
"""Conditions of the whole object. Those of single components change too often, and are in the status anyway."""

BAD_WHEN: Mapping[str, str] = {
    "Ready": "False", "Stable": "False", "Exchanging": "False", "Failed": "True", "Paused": "True",
    "Stalled": "True", "UpToDate": "False", "Fits": "False", "VolumesReady": "False", "Exposed": "False", "Learning": "False",
    "StalledOnSignal": "True",
}  # fmt: skip
EXPECTED = ("Stable", "Fits", "VolumesReady", "Exposed", "Learning")
"""Conditions that are no news while they are good for the first time."""
STARTING = ("ComponentsNotReady", "PodsNotReady", "NotObserved", "Absent")
"""Reasons of what only needs time: they are no news while an object is not ready, and no warning of a new one."""
SERIES_SECONDS = 1800.0
FEWEST_SERIES = 256
"""Series after which ended ones are looked for, and again when there are twice those that were left: a look at each for every Event took as long
as the Event."""
MAX_WAITING = 256
NOTE_LENGTH = 1000  # the API server takes 1,024 bytes; conditions are ASCII except for names that people chose
BUDGET_SECONDS = 5.0


class Notice(NamedTuple):
    """One transition."""

    type: str
    """`Normal` or `Warning`."""
    reason: str
    note: str


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Notice]:
    """Transitions to report when a status replaces another.

    Of a new object what is bad is reported, and not what it does not meet yet. An object that is not ready for another cause than before is news.
    """
    old = {found["type"]: found["status"] for found in before.get("conditions", ())}
    causes = {found["type"]: found["reason"] for found in before.get("conditions", ())}
    told = []
    for found in after.get("conditions", ()):
        kind, status = found["type"], found["status"]
        bad = BAD_WHEN.get(kind) == status
        caused = kind == "Ready" and bad and found["reason"] not in (causes.get(kind), *STARTING)
        if kind not in REPORTED or status == "Unknown" or (old.get(kind) == status and not caused):
            continue
        if old.get(kind, "Unknown") == "Unknown" and not bad and kind in EXPECTED:
            continue
        if kind not in old and not bad and status == "False":
            continue
        bad = bad and (kind in old or found["reason"] not in STARTING)
        text = f"{kind} is {status}: {found['reason']}" + (f": {found['message']}" if found.get("message") else "")
        # Reasons of Events are one word, and the condition's own reason may be as vague as NoFailure.
        told.append(
            Notice("Warning" if bad else "Normal", kind if status == "True" else f"Not{kind}", text[:NOTE_LENGTH])
        )
    return told


class _EventSeries(NamedTuple):
    name: str
    times: int
    last: float


class EventRecorder:
    """Writes Events for transitions. Safe for threads; `start` before use, `stop` at the end."""

    def __init__(self, api: ApiServer, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._identity, self._clock = api, identity, clock
        self._waiting: queue.Queue[tuple[Object, Notice] | None] = queue.Queue(MAX_WAITING)
        self._series: dict[tuple[str, Notice], _EventSeries] = {}
        self._most_series = FEWEST_SERIES
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting Events, for at most a few seconds."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(BUDGET_SECONDS)

    def transitions(self, about: Object, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Queue Events for changed conditions; never blocks."""
        for notice in transitions(before, after):
            try:
                self._waiting.put_nowait((about, notice))
            except queue.Full:
                log.warning("dropped an Event, because too many are waiting: %s", notice.note)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            about, notice = item
            try:
                self.record(about, notice)
            except ApiError as error:
                log.warning("dropped an Event: %s", error)

    def record(self, about: Object, notice: Notice) -> None:
        """Write one Event now, or count it in its series; raises ApiError."""
        metadata, now = about["metadata"], self._clock()
        key = (metadata["uid"], notice)
        known = self._series.get(key)
        if known is not None and now - known.last < SERIES_SECONDS:
            times = known.times + 1
            series = {"count": times, "lastObservedTime": micro_time()}
            try:
                self._api.call(
                    "patch", EVENT, metadata["namespace"], known.name,
                    body={"series": series}, content_type=MERGE_PATCH, budget_seconds=BUDGET_SECONDS,
                )  # fmt: skip
                self._series[key] = known._replace(times=times, last=now)
                return
            except ApiError as error:
                if error.status != 404:
                    raise  # else the cluster has dropped it, as it does with Events after an hour
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        made = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": micro_time(),
            "reportingController": "shoal.dev/operator",
            "reportingInstance": self._identity,
            "action": "Reconcile",
            "reason": notice.reason,
            "type": notice.type,
            "note": notice.note,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
        }
        self._api.call("create", EVENT, metadata["namespace"], body=made, budget_seconds=BUDGET_SECONDS)
        if len(self._series) >= self._most_series:
            self._series = {each: found for each, found in self._series.items() if now - found.last < SERIES_SECONDS}
            self._most_series = FEWEST_SERIES + 2 * len(self._series)
        self._series[key] = _EventSeries(name, 1, now)
