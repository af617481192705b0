"""Trying again: how long to wait, when to stop, and how often to say so. The programs and the operator use this module and no other way.

`retrying` repeats a call until it succeeds or a deadline has passed; tenacity does the counting. `Backoff` counts failures for a loop of its own,
such as `telemetry.until_stopped`. `doubled` is the formula without chance, for pauses that are shown or stored.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tenacity import RetryCallState, Retrying, retry_if_exception, retry_if_exception_type

JITTER = 0.5
"""Share of a delay that is random: clients that failed together do not come back together."""
MIN_RETRY_AFTER_SECONDS = 0.1
"""Nobody is asked again without a pause, whatever it says."""
MAX_RETRY_AFTER_SECONDS = 60.0
"""A server may ask for patience, not for an hour of silence."""


def doubled(failures: int, first: float, longest: float) -> float:
    """`first` seconds, twice as much after each of `failures`, at most `longest`."""
    # 2**64 is beyond any bound; a larger exponent would overflow a float after days of failures.
    return min(longest, first * 2.0 ** min(max(failures, 0), 64))


class Backoff:
    """Counts failures in a row of one thing. Each wait is twice the one before, less up to half of it."""

    def __init__(self, first: float, longest: float, random_: Callable[[], float] = random.random) -> None:
        self._first, self._longest, self._random = first, longest, random_
        self.failures = 0

    def next(self) -> float:
        """One more failure: seconds to wait."""
        self.failures += 1
        return self.after(self.failures)

    def after(self, failures: int) -> float:
        """Seconds to wait after this number of failures in a row, at least one."""
        return doubled(failures - 1, self._first, self._longest) * (1 - JITTER * self._random())

    def reset(self) -> None:
        self.failures = 0


class Words:
    """Lets one of several threads speak once in a while: a dozen that wait for the same thing are one line, not a dozen."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._spoke = -math.inf

    def due(self, since: float = -math.inf) -> bool:
        """Whether to speak now; if so, nobody does for the next `seconds`. `since`: nor so soon after this moment (monotonic seconds)."""
        with self._lock:
            now = time.monotonic()
            if now - max(self._spoke, since) < self._seconds:
                return False
            self._spoke = now
            return True


def retrying(
    on: tuple[type[BaseException], ...] | Callable[[BaseException], bool],
    backoff: Backoff,
    *,
    deadline_seconds: float,
    give_up: Callable[[BaseException, float], BaseException] | None = None,
    say: Callable[[BaseException, float], None] = lambda error, waited: None,
    asked: Callable[[BaseException], float | None] = lambda error: None,
    pause: Callable[[float], None] = time.sleep,
    news: Callable[[], float] | None = None,
) -> Retrying:
    """What a call is made with that may fail for a while: `retrying(...)(call)` gives its answer. May be used by several threads at once.

    Args:
        on: the errors after which another try may help; any other one goes through.
        backoff: how long to wait; its count is not touched.
        deadline_seconds: no try begins later than this after the first one; 0 is a single try.
        give_up: makes the error that is raised at the deadline, from the last error and the seconds without `news`; it says what was waited for.
            None: the last error itself is raised.
        say: told of each failure that is followed by another try, as `give_up` is.
        asked: how long the other side asked to wait, instead of our own pause; None where it said nothing.
        pause: how to wait; it may raise, to end the waiting.
        news: when (monotonic seconds) the call last got on; the deadline counts from then. None: from the start.
    """

    def waited(state: RetryCallState) -> float:
        assert state.outcome_timestamp is not None
        return state.outcome_timestamp - max(state.start_time, news() if news is not None else 0.0)

    def wait(state: RetryCallState) -> float:
        asked_seconds = asked(_error(state))
        return backoff.after(state.attempt_number) if asked_seconds is None else asked_seconds

    def end(state: RetryCallState) -> None:
        assert give_up is not None
        raise give_up(_error(state), waited(state)) from _error(state)

    return Retrying(
        sleep=pause,
        stop=lambda state: waited(state) + state.upcoming_sleep >= deadline_seconds,
        wait=wait,
        retry=retry_if_exception(on) if callable(on) else retry_if_exception_type(on),
        before_sleep=lambda state: say(_error(state), waited(state)),
        retry_error_callback=end if give_up is not None else None,
        reraise=True,
    )


def _error(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    assert error is not None, "another try is only made after an error"
    return error


def retry_after_seconds(header: str | None, now: datetime | None = None) -> float | None:
    """What a `Retry-After` header asks for (RFC 9110, 10.2.3: seconds or a date), bounded; None when there is none or it is no such thing."""
    text = (header or "").strip()
    try:
        if text.isascii() and text.replace(".", "", 1).isdigit():
            seconds = float(text)
        else:
            when = parsedate_to_datetime(text)
            seconds = (when.replace(tzinfo=when.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, MIN_RETRY_AFTER_SECONDS), MAX_RETRY_AFTER_SECONDS)
