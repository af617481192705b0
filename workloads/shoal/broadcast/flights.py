"""The shards of a transfer that are in flight: who fetches what from whom, how far it is, and which of them shall end.

A thread-safe shell around `pace`, which decides. In: take-offs, bytes and landings, told by the threads of a `Transfer`. Out: cancelled attempts,
and the shard that an idle thread should ask for once more.
"""

import threading
import time
from dataclasses import dataclass, field

from shoal.broadcast import pace
from shoal.broadcast.download import Attempt
from shoal.broadcast.pace import FlightPace
from shoal.broadcast.sources import Sources


@dataclass(eq=False)
class Flight:
    """One try of one shard at one source."""

    index: int
    source: str
    size: int
    wanted: int
    attempt: Attempt = field(default_factory=Attempt)
    started: float = field(default_factory=time.monotonic)
    received: int = 0
    stolen: bool = False

    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def pace(self) -> FlightPace:
        return FlightPace(self.index, self.source, self.wanted, self.received, self.age())


class Flights:
    """All flights of one transfer."""

    def __init__(self, sources: Sources, in_flight: int) -> None:
        self._sources = sources
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._flying: list[Flight] = []
        self._tried: dict[int, set[str]] = {}
        self._hedged: set[int] = set()
        self._over = False

    def start(self, index: int, source: str, size: int, wanted: int, tried: set[str]) -> Flight:
        """`wanted` of the `size` bytes of a shard are missing; `tried`: the sources that had their turn at it, this one included."""
        flight = Flight(index, source, size, wanted)
        with self._lock:
            self._flying.append(flight)
            self._tried[index] = tried
            if self._over:
                flight.attempt.cancel()
        return flight

    def land(self, flight: Flight) -> None:
        with self._lock:
            self._flying.remove(flight)

    def end(self, index: int | None = None) -> None:
        """Cancel what is in flight of a shard that is here now; without an index, everything, for good."""
        with self._lock:
            self._over = self._over or index is None
            for flight in self._flying:
                if index is None or flight.index == index:
                    flight.attempt.cancel()

    def steal(self) -> None:
        """End the flight that others would make much sooner, if there is one; its thread goes on elsewhere."""
        expected, known = self._expected(), self._sources.urls()
        with self._lock:
            paces = {flight.pace(): flight for flight in self._flying if not flight.stolen}
            found = pace.to_steal(list(paces), self._tried, known, expected)
            if found is not None:
                paces[found].stolen = True
                paces[found].attempt.cancel()

    def to_hedge(self) -> tuple[int, str] | None:
        """A shard to ask for once more and the source that has it in flight, for a thread that has nothing else to do."""
        expected = self._expected()
        with self._lock:
            sizes = {flight.index: flight.size for flight in self._flying}
            open_to_it = [flight.pace() for flight in self._flying if flight.index not in self._hedged]
            found = pace.to_hedge(open_to_it, sizes, expected)
            if found is None:
                return None
            self._hedged.add(found.index)
        return found.index, found.source

    def hedge_over(self, index: int) -> None:
        """The second try that `to_hedge` gave out has ended."""
        with self._lock:
            self._hedged.discard(index)

    def _expected(self) -> dict[str, float]:
        known = self._sources.rates()
        with self._lock:
            return pace.rates([flight.pace() for flight in self._flying], known, self._in_flight)
