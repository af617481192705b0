"""Follows a run's step reports in the store and gives each tracker what it lacks."""

from collections.abc import Callable, Sequence

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.steps import StepMetrics
from shoal.storage import NotFound, Store, StoreUnavailable
from shoal.telemetry import get_logger
from shoal.tracking.points import TrackedStep, point
from shoal.tracking.sinks import Sink, TrackerFailed

MOST_AT_ONCE = 256
"""Points in one batch: a run that is followed from its middle has thousands."""


class StepFollower:
    """Steps come in order, one document each: a look costs one request where there is nothing new, and one a new step.

    A tracker that fails is closed and opened again at the next look; the others go on meanwhile.
    """

    def __init__(self, store: Store, openers: Sequence[Callable[[], Sink]]) -> None:
        self._store = store
        self._openers = openers
        self._sinks: list[Sink | None] = [None] * len(openers)
        self._next = [0] * len(openers)

    def follow(self) -> int:
        """Send what is new; returns how many points were. Raises StoreUnavailable."""
        return sum(self._one(number) for number in range(len(self._openers)))

    def close(self) -> None:
        """Close every tracker."""
        for number, sink in enumerate(self._sinks):
            self._sinks[number] = None
            if sink is not None:
                self._guarded(sink.name, sink.close)

    def _one(self, number: int) -> int:
        try:
            sink = self._sinks[number]
            if sink is None:
                sink = self._sinks[number] = self._openers[number]()
                self._next[number] = sink.last_step() + 1
                get_logger().info("tracker opened", tracker=sink.name, from_step=self._next[number])
            sent = 0
            while points := self._points(self._next[number]):
                sink.write(points)
                self._next[number] = points[-1].step + 1
                sent += len(points)
            return sent
        except StoreUnavailable:
            raise
        except Exception as error:  # each library has its own, and none of them may end the others
            get_logger().warning("a tracker failed and is tried again", error=f"{type(error).__name__}: {error}"[:500])
            failed, self._sinks[number] = self._sinks[number], None
            if failed is not None:
                self._guarded(failed.name, failed.close)
            return 0

    def _guarded(self, name: str, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:
            get_logger().warning(
                "a tracker was not closed", tracker=name, error=f"{type(error).__name__}: {error}"[:500]
            )

    def _points(self, begin: int) -> list[TrackedStep]:
        """Points of steps from `begin` on, in order, without a gap."""
        found: list[TrackedStep] = []
        while len(found) < MOST_AT_ONCE:
            key = keys.step_metrics(begin + len(found))
            try:
                found.append(point(StepMetrics.from_json(self._store.get(key))))
            except NotFound:
                break
            except ValidationError as error:
                raise TrackerFailed(f"{key} is not readable: {error.error_count()} mistakes") from None
        return found
