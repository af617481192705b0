"""Waiting times between attempts: exponential with jitter, and what a server asked for. Pure; used by queue, informers and HTTP calls."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

JITTER = 0.5
"""Share of a delay that is random: clients that failed together do not come back together."""

MIN_RETRY_AFTER_SECONDS = 0.1
"""Nobody is asked again without a pause, whatever it says."""

MAX_RETRY_AFTER_SECONDS = 30.0
"""A server may ask for patience, not for an hour of silence."""


def delay_seconds(
    attempt: int, *, first: float, cap: float, random_: Callable[[], float] = random.random, factor: float = 2.0
) -> float:
    """Seconds before try number `attempt` + 1 (0 is the first failure): `first * factor**attempt`, at most `cap`, less up to half of it."""
    # 2**64 is beyond any cap; a larger exponent would overflow a float after days of failures.
    whole = min(cap, first * factor ** min(attempt, 64))
    return whole * (1 - JITTER * random_())


def retry_after_seconds(header: str | None, now: datetime | None = None) -> float | None:
    """What a `Retry-After` header asks for (RFC 9110, 10.2.3: seconds or a date), bounded; None when there is none or it is no such thing."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return _bounded(float(text))
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return _bounded((when - (now or datetime.now(UTC))).total_seconds())


def _bounded(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_AFTER_SECONDS), MAX_RETRY_AFTER_SECONDS)


class Backoff:
    """Counts failures in a row of one thing."""

    def __init__(self, first: float, cap: float, random_: Callable[[], float] = random.random) -> None:
        self._first, self._cap, self._random = first, cap, random_
        self.failures = 0

    def next(self) -> float:
        """One more failure: seconds to wait."""
        wait = delay_seconds(self.failures, first=self._first, cap=self._cap, random_=self._random)
        self.failures += 1
        return wait

    def reset(self) -> None:
        self.failures = 0
