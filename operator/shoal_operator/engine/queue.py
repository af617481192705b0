"""The work queue: keys to reconcile, each at most once in the queue and never at two workers at once.

In come keys from informers, handlers and reconciles that ask to be called again; workers take them out. Times come from the clock that is given, so
tests need no waiting. Namespaces with ready keys take turns, one key each: a tenant whose thousand objects change delays its own alone. Within one
the order is first in, first out: a key that changes all the time goes to the end each time it is done, so it starves nobody.

What somebody changed goes before what comes by the clock (figures of progress, children that settled, retries, another look): of those, one goes in
`ROUTINE_TURN` turns while both wait, and at most `routine_places` are worked on at the same time. An API server that is slow to write a thousand
runs' figures then does not delay an edit. Without places an edit beside 300 runs waited for 2.4 s (p99).
"""

import heapq
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from shoal.retries import Backoff
from shoal_operator.engine.kinds import Key

FIRST_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 60.0
"""Retries begin soon, as most failures pass at once, and end at one a minute, which no API server notices."""

STALE_ENTRIES = 1000
"""Entries of the heap that nobody waits for any more are swept out when there are this many beyond the live ones."""

SETTLE_SECONDS = 0.05
"""Controllers write a workload's status several times in a row; one reconcile answers them all."""

SETTLE_SECONDS_A_KEY = 0.003
"""With more keys that settle at the same time each waits longer: about 330 reconciles a second for children's sake, shared evenly by the
namespaces that have some. Each takes less than a millisecond: a third of a core at most, however many events come. What people change does not
wait for these."""


ROUTINE_TURN = 4
"""While keys of both kinds wait, one turn in as many is for a key that came by the clock."""

Waiting = OrderedDict[str, OrderedDict[Key, float]]
"""Since when each key waits; by namespace, the one whose turn is next first."""


class QueueObserver(Protocol):
    """Who counts what the queue does; `metrics.Metrics` in the operator."""

    def added(self, key: Key) -> None: ...
    def started(self, key: Key, queued_seconds: float) -> None: ...
    def finished(self, key: Key, work_seconds: float) -> None: ...
    def retried(self, key: Key) -> None: ...


class WorkQueue:
    """Deduplicating queue with delays and backoff by key. Safe for threads."""

    def __init__(
        self,
        observer: QueueObserver | None = None,
        *,
        routine_places: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        random_: Callable[[], float] = random.random,
    ) -> None:
        """`routine_places`: the most keys that came by the clock and are worked on at the same time; None for any number."""
        self._clock, self._observer, self._routine_places = clock, observer, routine_places
        self._backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, random_)
        self._changed = threading.Condition()
        self._ready: Waiting = OrderedDict()  # changed by somebody
        self._routine: Waiting = OrderedDict()  # come by the clock
        self._turn = 0
        self._working: dict[Key, float] = {}  # since when
        self._by_clock: set[Key] = set()  # of these, the ones that came by the clock
        self._again: dict[Key, bool] = {}  # added while being worked on, and whether somebody changed it
        self._due: dict[Key, float] = {}  # the earliest time asked for
        self._heap: list[tuple[float, Key]] = []  # (time, key); stale where `_due` says otherwise
        self._settling: dict[str, set[Key]] = {}  # put off for children's sake, by namespace
        self._failures: dict[Key, int] = {}
        self._closed = False

    def add(self, key: Key) -> None:
        """Have the key worked on as soon as a worker is free; once, however often it is added before that."""
        with self._changed:
            self._add(key)

    def add_routine(self, key: Key) -> None:
        """Have the key worked on soon, after those that somebody changed."""
        with self._changed:
            self._add(key, urgent=False)

    def add_after(self, key: Key, seconds: float) -> None:
        """Have the key worked on after a delay, as `add_routine` does; of several delays the earliest counts."""
        with self._changed:
            self._add_after(key, seconds)

    def add_settling(self, key: Key) -> None:
        """Have the key worked on when its children have settled: soon, but later the more keys wait for that."""
        with self._changed:
            if key not in self._settling.get(key.namespace, ()) and not self._is_ready(key):
                own = self._settling.setdefault(key.namespace, set())
                own.add(key)
                self._add_after(key, max(SETTLE_SECONDS, len(own) * len(self._settling) * SETTLE_SECONDS_A_KEY))

    def get(self, timeout: float | None = None) -> Key | None:
        """The next key, for this worker alone until `done`; None when the queue is closed, or nothing came within `timeout` seconds."""
        end = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._closed:
                self._ripen()
                if self._ready or self._may_start_routine():
                    return self._start()
                now = self._clock()
                if end is not None and now >= end:
                    return None
                waits = [when - now for when in (end, self._heap[0][0] if self._heap else None) if when is not None]
                self._changed.wait(min(waits) if waits else None)
            return None

    def done(self, key: Key) -> None:
        """The worker is through with the key."""
        with self._changed:
            since = self._working.pop(key)
            self._by_clock.discard(key)
            if self._observer is not None:
                self._observer.finished(key, self._clock() - since)
            if (urgent := self._again.pop(key, None)) is not None:
                self._add(key, urgent=urgent)
            self._changed.notify_all()

    def succeeded(self, key: Key) -> None:
        """Forget failures of the key."""
        with self._changed:
            self._failures.pop(key, None)

    def failed(self, key: Key, at_most: float = MAX_RETRY_SECONDS) -> float:
        """Have the key worked on again, later with each failure in a row, but after `at_most` seconds; returns the seconds until then."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(at_most, self._backoff.after(failures))
        if self._observer is not None:
            self._observer.retried(key)
        self.add_after(key, wait)
        return wait

    def close(self) -> None:
        """Hand out nothing more; what is being worked on may be finished."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is being worked on; False when that took too long."""
        end = self._clock() + timeout
        with self._changed:
            while self._working:
                if (left := end - self._clock()) <= 0:
                    return False
                self._changed.wait(left)
            return True

    def depth(self) -> int:
        """Keys that wait for a worker."""
        with self._changed:
            self._ripen()
            waiting = (*self._ready.values(), *self._routine.values())
            return sum(map(len, waiting)) + len(self._again)

    def running_seconds(self) -> list[float]:
        """For how long each key has been worked on that is not done."""
        with self._changed:
            now = self._clock()
            return [now - since for since in self._working.values()]

    def _add(self, key: Key, *, urgent: bool = True) -> None:
        if self._closed or key in self._ready.get(key.namespace, ()):
            return
        if key in self._again:
            self._again[key] |= urgent
            return
        since = self._clock()
        if key in self._routine.get(key.namespace, ()):
            if not urgent:
                return
            since = _take(self._routine, key)
        elif self._observer is not None:
            self._observer.added(key)
        if key in self._working:
            self._again[key] = urgent
            return
        waiting = self._ready if urgent else self._routine
        waiting.setdefault(key.namespace, OrderedDict())[key] = since
        self._changed.notify()

    def _is_ready(self, key: Key) -> bool:
        return any(key in waiting.get(key.namespace, ()) for waiting in (self._ready, self._routine))

    def _add_after(self, key: Key, seconds: float) -> None:
        if self._closed or self._is_ready(key):
            return
        due = self._clock() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            if len(self._heap) > 2 * len(self._due) + STALE_ENTRIES:
                self._heap = [(when, each) for each, when in self._due.items()]
                heapq.heapify(self._heap)
            self._changed.notify()

    def _ripen(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._add(key, urgent=False)

    def _may_start_routine(self) -> bool:
        return bool(self._routine) and (self._routine_places is None or len(self._by_clock) < self._routine_places)

    def _start(self) -> Key:
        waiting = self._ready or self._routine
        if self._ready and self._may_start_routine():
            self._turn = (self._turn + 1) % ROUTINE_TURN
            waiting = self._ready if self._turn else self._routine
        namespace, keys = waiting.popitem(last=False)
        key, since = keys.popitem(last=False)
        if keys:
            waiting[namespace] = keys  # at the end: the others' turn comes first
        now = self._clock()
        # What was asked for earlier is answered by the work that begins now; what is asked for from here on stands.
        self._due.pop(key, None)
        if (settling := self._settling.get(namespace)) is not None:
            settling.discard(key)
            if not settling:
                del self._settling[namespace]
        self._working[key] = now
        if waiting is self._routine:
            self._by_clock.add(key)
        if self._observer is not None:
            self._observer.started(key, now - since)
        return key


def _take(waiting: Waiting, key: Key) -> float:
    """Take the key out; since when it waited."""
    keys = waiting[key.namespace]
    since = keys.pop(key)
    if not keys:
        del waiting[key.namespace]
    return since
