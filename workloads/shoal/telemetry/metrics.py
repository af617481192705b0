"""Metrics that every part has. Each part adds its own beside its code, with prometheus-client's default registry."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, disable_created_metrics

disable_created_metrics()  # a series for each counter that says when it began: nobody asks, and it doubles their number

BUSY_SECONDS = Counter("shoal_busy_seconds_total", "Wall-clock seconds spent working, by phase.", ["phase"])
WAITING = Gauge(
    "shoal_waiting_seconds", "Seconds that the process has waited for this; 0 when it does not wait.", ["for_what"]
)


def unmeasured(gauge: Gauge) -> Gauge:
    """The gauge, at NaN until somebody measures it: the 0 that it would begin with is drawn, and looks like a collapse."""
    gauge.set(math.nan)
    return gauge


@contextmanager
def busy(phase: str) -> Iterator[None]:
    """Count the time of the block as work in `phase` (a fixed word, so that labels stay bounded)."""
    started = time.monotonic()
    try:
        yield
    finally:
        BUSY_SECONDS.labels(phase).inc(time.monotonic() - started)
