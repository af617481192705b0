"""Token buckets: how often one caller may ask. Pure except for the clock; one event loop or lock around it is the caller's affair.

A bucket is per process: with several replicas behind one address a caller may have this
many times more; that is fine for its purpose, one key that asks without end.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 50_000
"""Remembered at once, about 200 bytes each; the one that asked longest ago is forgotten first, and its bucket is full again."""


class Pace:
    """`per_second` requests of each caller in the long run, `burst` at once."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = float(burst)
        self._clock = clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0.0 when the caller may ask now, else the seconds until it may; a refused request costs nothing."""
        now = self._clock()
        left = self._left(caller, now)
        self._callers.pop(caller, None)
        self._callers[caller] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._callers) > MOST_CALLERS:
            self._callers.popitem(last=False)
        return self._wait(left)

    def wait(self, caller: str) -> float:
        """The answer that `take` would give now; takes no token."""
        return self._wait(self._left(caller, self._clock()))

    def _left(self, caller: str, now: float) -> float:
        left, at = self._callers.get(caller, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _wait(self, left: float) -> float:
        return 0.0 if left >= 1.0 else (1.0 - left) / self._rate
