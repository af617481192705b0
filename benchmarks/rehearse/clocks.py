"""The run's own time, and what passes in it: lines that carry bytes, machines that are busy. Seconds and bytes are those of the run.

The run's time is the machine's, `factor` times as fast. A line carries one piece after the other at its rate; whoever sends sends in pieces, so that
all get their share. `Busy` adds up for how long somebody worked between two moments, and is what idle shares are measured with.
"""

import asyncio
import time
from dataclasses import dataclass, field

LEAST_SLEEP = 0.001
"""Real seconds, below which a wait is none: an event loop's clock is no finer."""


@dataclass
class RunClock:
    """Seconds of the run since it began."""

    factor: float
    began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        return (time.monotonic() - self.began) * self.factor

    async def until(self, moment: float) -> None:
        """Wait for a moment of the run; at once where it is over."""
        left = (moment - self.now()) / self.factor
        if left > LEAST_SLEEP:
            await asyncio.sleep(left)

    async def sleep(self, seconds: float) -> None:
        """Wait seconds of the run."""
        await self.until(self.now() + seconds)


@dataclass
class Busy:
    """Intervals in which somebody worked, by machine."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def add(self, begin: float, end: float) -> None:
        self.spans.append((begin, end))

    def between(self, begin: float, end: float) -> float:
        """Seconds of work in this time, of all machines together."""
        return sum(max(0.0, min(last, end) - max(first, begin)) for first, last in self.spans)


@dataclass
class Line:
    """A line of `rate` bytes a second, and what it carried."""

    clock: RunClock
    rate: float
    busy: Busy = field(default_factory=Busy)
    _free: float = 0.0

    def reserve(self, nbytes: float) -> float:
        """Send a piece behind all that were sent before; the moment at which it is there."""
        begin = max(self.clock.now(), self._free)
        self._free = begin + nbytes / self.rate
        self.busy.add(begin, self._free)
        return self._free

    async def carry(self, nbytes: float, pieces: int = 1) -> None:
        """Send bytes in equal pieces, each after the one before has arrived."""
        for _ in range(pieces):
            await self.clock.until(self.reserve(nbytes / pieces))
