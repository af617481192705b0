"""How far an audit is, in lines for a person: what is done of what there is, and about how long the rest takes.

In: the end of each check. Out: a line every few seconds. Called by `audit`. The estimate is the mean time of a check of each kind so far.
"""

import threading
import time
from collections.abc import Callable

from shoal.text import count, duration

SAY_SECONDS = 5.0


class Ticker:
    """Counts checks by kind. Safe for several threads, `jobs` of which check at a time where a kind allows that."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.Lock()
        self._of: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._took: dict[str, float] = {}
        self._told = clock()

    def expect(self, kind: str, number: int) -> None:
        """Add a number of checks of one kind that are to be done."""
        self._of[kind] = self._of.get(kind, 0) + number
        self._done.setdefault(kind, 0)
        self._took.setdefault(kind, 0.0)

    def done(self, kind: str, seconds: float) -> None:
        """One check is; `seconds` of the audit's time."""
        with self._lock:
            self._done[kind] += 1
            self._took[kind] += seconds
            if self._clock() - self._told >= SAY_SECONDS:
                self._told = self._clock()
                self._say(self.line())

    def line(self) -> str:
        """The state in words."""
        parts = [f"{kind} {count(self._done[kind])} of {count(self._of[kind])}" for kind in self._of]
        left = self.seconds_left()
        return ", ".join(parts) + ("" if left is None else f"; about {duration(left)} left")

    def seconds_left(self) -> float | None:
        """None while a kind that is to come was never measured."""
        left = 0.0
        for kind, of in self._of.items():
            rest = of - self._done[kind]
            if rest > 0 and self._done[kind] == 0:
                return None
            left += rest * self._took[kind] / max(1, self._done[kind])
        return left
