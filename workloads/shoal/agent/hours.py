"""Hours of the day in which a machine's owner lends it: `22:00-07:00`, several with commas, in the machine's own time zone. Pure.

In: the owner's text, the time. Out: whether the machine is lent now, and until when. A range begins and ends at the first moment when the machine's
clock shows that time on that day. When clocks change, each is still once a day: an hour that is repeated counts once, and a time that is skipped is
the moment after the gap. The time zone is that of the C library (`TZ`, else /etc/localtime) when the process began.
"""

import re
import time
from calendar import timegm
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RANGE = re.compile(r"(\d{2}):(\d{2})-(\d{2}):(\d{2})", re.ASCII)
MOST_RANGES = 16
DAY_MINUTES = 24 * 60
DAY_SECONDS = 86_400
STEP_SECONDS = 900
"""Clocks change at whole quarters of an hour, in all zones since 1972."""
WIDEST_SECONDS = 6 * 3600
"""A clock differs by less from the one of some hours ago."""

Local = Callable[[float], time.struct_time]


class BadHours(ValueError):
    """The text names no hours of the day; the message says what is allowed."""


@dataclass(frozen=True)
class Window:
    """Whether the machine is lent, and until when that holds, in seconds since 1970."""

    is_open: bool
    until_unix: float


def parse(text: str) -> list[tuple[int, int]]:
    """Ranges in minutes of the day; an end that is not after its begin is on the next day. Raises `BadHours`."""
    ranges = []
    for part in text.split(","):
        found = RANGE.fullmatch(part.strip())
        if found is None:
            raise BadHours(f"{text[:60]!r} are no hours of the day: write HH:MM-HH:MM, such as 22:00-07:00")
        begin_hour, begin_minute, end_hour, end_minute = map(int, found.groups())
        begin, end = begin_hour * 60 + begin_minute, end_hour * 60 + end_minute
        if begin_minute > 59 or end_minute > 59 or begin >= DAY_MINUTES or end > DAY_MINUTES:
            raise BadHours(f"{part.strip()} is no range of hours: they go from 00:00 to 24:00")
        if begin == end:
            raise BadHours(f"{part.strip()} is empty: leave --hours out to lend the machine all day")
        ranges.append((begin, end if end > begin else end + DAY_MINUTES))
    if len(ranges) > MOST_RANGES:
        raise BadHours(f"{len(ranges)} ranges are too many: at most {MOST_RANGES}")
    return ranges


def window(ranges: Sequence[tuple[int, int]], unix: float, local: Local = time.localtime) -> Window:
    """Whether a moment lies in one of the ranges, and when that changes. Ranges that touch are one."""
    today = timegm((*local(unix)[:3], 0, 0, 0, 0, 0, 0))
    spans = sorted(
        (
            _moment(today + day * DAY_SECONDS + begin * 60, unix, local),
            _moment(today + day * DAY_SECONDS + end * 60, unix, local),
        )
        for day in (-2, -1, 0, 1, 2)
        for begin, end in ranges
    )
    merged: list[tuple[float, float]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > begin:  # a range within a skipped hour is no range on that day
            merged.append((begin, end))
    for begin, end in merged:
        if unix < begin:
            return Window(False, begin)
        if unix < end:
            return Window(True, end)
    return Window(False, unix + DAY_SECONDS)  # of ranges that no day of these has: look again tomorrow


def _moment(shown: float, near_unix: float, local: Local) -> float:
    """The first moment when the clock shows this time or a later one. `shown` counts as if the clock were UTC's."""

    def clock(unix: float) -> int:
        return timegm(local(unix))

    guess = shown - (clock(near_unix) - int(near_unix))
    low = (guess - WIDEST_SECONDS) // STEP_SECONDS * STEP_SECONDS
    while clock(low) < shown:
        low += STEP_SECONDS
    low, high = low - STEP_SECONDS, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if clock(middle) < shown else (low, middle)
    return high
