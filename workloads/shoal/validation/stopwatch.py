"""Where the time for one file goes: seconds by check, for the verdict and for Prometheus. Made by `judge` for each file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.telemetry import busy


class Stopwatch:
    """Counts from when it is made. Use `with watch("redraw"):`; the same name again adds up."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.seconds: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self._started

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time of the block, which holds no other such block, under `name`: one of a few fixed words."""
        started = time.monotonic()
        try:
            with busy(name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
