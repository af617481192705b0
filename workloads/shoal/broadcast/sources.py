"""The sources of a transfer: relays with their records, drawn at random by weight; or the one origin.

A thread-safe shell around `relay_choice`, which decides; the clock and the seeded generator live here. Used by `transfer`, kept by `fetch` and
`relay` from one version to the next: what was learnt about a relay lasts longer than a version.
"""

import random
import threading
import time
from collections.abc import Collection, Sequence

from shoal.broadcast import relay_choice
from shoal.broadcast.relay_choice import RelayRecord


class Sources:
    """Base URLs to ask. Safe to use from several threads."""

    def __init__(self, urls: Sequence[str], rng: random.Random) -> None:
        """`rng` is seeded by the caller: the same outcomes give the same draws."""
        self._lock = threading.Lock()
        self._rng = rng
        self._records: dict[str, RelayRecord] = {}
        self.follow(urls)

    def follow(self, urls: Sequence[str]) -> None:
        """Set the present list of sources."""
        with self._lock:
            self._records = relay_choice.follow(self._records, urls, time.monotonic())

    def pick(self, without: Collection[str]) -> str | None:
        """A source that is not in `without`; None when there is none."""
        with self._lock:
            return relay_choice.pick(self._records, time.monotonic(), self._rng, without)

    def succeeded(self, url: str, size: int, seconds: float) -> None:
        """`size` bytes came in `seconds`, whole and right."""
        with self._lock:
            if url in self._records:
                rate = size / max(seconds, 1e-6)
                self._records = relay_choice.succeeded(self._records, url, rate, time.monotonic())

    def failed(self, url: str) -> None:
        with self._lock:
            if url in self._records:
                self._records = relay_choice.failed(self._records, url, time.monotonic())

    def slow(self, url: str, size: int, seconds: float) -> None:
        """`size` bytes came in `seconds`, and the rest is fetched elsewhere because others are faster."""
        with self._lock:
            if url in self._records:
                rate = size / max(seconds, 1e-6)
                self._records = relay_choice.slow(self._records, url, rate, time.monotonic())

    def rates(self) -> dict[str, float]:
        """Bytes a second of every source that was measured (moving average)."""
        with self._lock:
            return {url: record.bandwidth for url, record in self._records.items() if record.bandwidth is not None}

    def urls(self) -> list[str]:
        with self._lock:
            return list(self._records)
