"""Follows a run's step reports in the store and gives each tracker what it lacks."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.steps import StepMetrics
from shoal.retries import Backoff
from shoal.storage import NotFound, Store, StoreUnavailable
from shoal.telemetry import get_logger
from shoal.tracking.points import TrackedStep, point
from shoal.tracking.sinks import Sink

MOST_AT_ONCE = 256
"""Points in one batch: a run that is followed from its middle has thousands."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 600.0
"""Before a tracker that failed is opened again, which leaves a folder in some: at the longest wait, some hundred and fifty a day."""


class _NotReadable(RuntimeError):
    """A step's report is no such document; the message says which and why."""


@dataclass
class _Followed:
    """One tracker: how it is opened, the step that it gets next, and when it is tried again after a failure."""

    opener: Callable[[], Sink]
    sink: Sink | None = None
    next_step: int = 0
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS))


class StepFollower:
    """Steps come in order, one document each: a look costs one request where there is nothing new, and one a new step.

    A tracker that fails is closed, and opened again after a pause that grows until it has written something; the others go on meanwhile.
    """

    def __init__(
        self, store: Store, openers: Sequence[Callable[[], Sink]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._clock = clock
        self._followed = [_Followed(opener) for opener in openers]

    def follow(self, *, patient: bool = True) -> int:
        """Send what is new; returns how many points were. `patient`: leave trackers alone whose pause is not over. Raises StoreUnavailable."""
        now = self._clock()
        return sum(self._one(each) for each in self._followed if not patient or now >= each.not_before)

    def close(self) -> None:
        """Close every tracker."""
        for each in self._followed:
            self._close(each)

    def _one(self, each: _Followed) -> int:
        sent = 0
        try:
            # An opening costs a folder or a session: none before there is something to send.
            if each.sink is None and self._points(each.next_step, 1):
                each.sink = each.opener()
                each.next_step = each.sink.last_step() + 1
                get_logger().info("tracker opened", tracker=each.sink.name, from_step=each.next_step)
            while each.sink is not None and (points := self._points(each.next_step, MOST_AT_ONCE)):
                each.sink.write(points)
                each.next_step = points[-1].step + 1
                each.not_before = 0.0
                each.backoff.reset()
                sent += len(points)
        except StoreUnavailable:
            raise
        except _NotReadable as error:
            self._wait(each, "a step's report is not readable and is tried again", error)
        except Exception as error:  # each library has its own, and none of them may end the others
            self._wait(each, "a tracker failed and is tried again", error)
            self._close(each)
        return sent

    def _wait(self, each: _Followed, event: str, error: Exception) -> None:
        seconds = each.backoff.next()
        each.not_before = self._clock() + seconds
        said = f"{type(error).__name__}: {error}"[:500]
        get_logger().warning(event, error=said, failures=each.backoff.failures, seconds=round(seconds))

    @staticmethod
    def _close(each: _Followed) -> None:
        sink, each.sink = each.sink, None
        if sink is None:
            return
        try:
            sink.close()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:500]
            get_logger().warning("a tracker was not closed", tracker=sink.name, error=said)

    def _points(self, begin: int, most: int) -> list[TrackedStep]:
        """At most `most` points of steps from `begin` on, in order, without a gap. Raises _NotReadable where the first of them is."""
        found: list[TrackedStep] = []
        with suppress(NotFound):
            while len(found) < most:
                key = keys.step_metrics(begin + len(found))
                try:
                    found.append(point(StepMetrics.from_json(self._store.get(key))))
                except ValidationError as error:
                    if found:
                        break  # what comes before it is sent; the next look begins with it
                    raise _NotReadable(f"{key}: {error.error_count()} mistakes") from None
        return found
