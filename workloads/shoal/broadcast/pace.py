"""Which shards in flight are too slow: taken from their relay, or asked for a second time at another one.

Pure. In: the flights of a transfer, and what the sources are known to give. Out: the flight to act on, or none. Two cases. While there is other
work, a slow flight is *stolen*: ended, and its shard continues at another relay from the byte it had reached. When only the tail is left, idle
threads *hedge*: they ask a second relay for the same shard, and whoever is second is cancelled. Called by `transfer`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

SETTLE_SECONDS = 1.0
"""A flight younger than this is not judged: its connection may still be growing its window."""
SILENT_SECONDS = 3.0
"""Without any byte for this long, any other relay is the better choice, even one that nothing is known of."""
EXPLORE_SECONDS = 5.0
"""A flight that would last longer may be moved to a source of which nothing is known yet, to learn what it gives."""
STEAL_FACTOR = 4.0
"""Another relay must be this many times faster: shares of one link differ by less, and a move costs a request."""
WORTH_SECONDS = 1.0
"""A flight that will end by itself within this time is left alone."""


@dataclass(frozen=True)
class FlightPace:
    """A flight as it stands: its shard, its source, bytes missing at its start, bytes received, age in seconds."""

    index: int
    source: str
    wanted: int
    received: int
    age: float

    @property
    def rate(self) -> float:
        """Bytes a second since the start."""
        return self.received / max(self.age, 1e-6)

    @property
    def left_seconds(self) -> float:
        """Time to its end at its rate; infinite when nothing has come."""
        return (self.wanted - self.received) / self.rate if self.received else float("inf")


def rates(flights: Sequence[FlightPace], known: Mapping[str, float], in_flight: int) -> dict[str, float]:
    """Bytes a second that one more flight may expect of each source.

    What its flights get now, else its moving average, shared by as many flights as there are: that average may be of a flight that was alone.
    """
    expected = {source: rate / max(in_flight, 1) for source, rate in known.items()}
    for source in {flight.source for flight in flights}:
        expected.setdefault(source, 0.0)  # it is being found out
        now = [flight.rate for flight in flights if flight.source == source and flight.age >= SETTLE_SECONDS]
        if now:
            expected[source] = max(now)
    return expected


def to_steal(
    flights: Sequence[FlightPace],
    tried: Mapping[int, Collection[str]],
    sources: Collection[str],
    expected: Mapping[str, float],
) -> FlightPace | None:
    """The flight that should go on elsewhere now, the slowest first.

    `tried`: sources that had their turn at each shard in this round; `sources`: all there are; `expected`: see `rates`.
    """
    for flight in sorted(flights, key=lambda one: one.rate):
        others = set(sources) - set(tried.get(flight.index, ())) - {flight.source}
        if not others or flight.left_seconds < WORTH_SECONDS:
            continue
        if flight.received == 0 and flight.age >= SILENT_SECONDS:
            return flight
        if flight.age >= SETTLE_SECONDS and flight.left_seconds > EXPLORE_SECONDS and not others <= expected.keys():
            return flight
        best = max((expected.get(source, 0.0) for source in others), default=0.0)
        if flight.age >= SETTLE_SECONDS and flight.rate * STEAL_FACTOR < best:
            return flight
    return None


def to_hedge(
    flights: Sequence[FlightPace], sizes: Mapping[int, int], expected: Mapping[str, float]
) -> FlightPace | None:
    """The flight whose shard should be asked for once more, by a thread that has nothing else to do; the one that would last longest.

    `flights`: those of shards that are asked for once; `sizes`: bytes of each shard, because the second asks for the whole.
    """
    for flight in sorted(flights, key=lambda one: -one.left_seconds):
        best = max((rate for source, rate in expected.items() if source != flight.source), default=0.0)
        again = sizes[flight.index] / best if best else SILENT_SECONDS
        settled = flight.age >= SETTLE_SECONDS and flight.left_seconds >= WORTH_SECONDS
        if settled and flight.left_seconds > again:
            return flight
    return None
