"""Hours of the day: parsing, nights, ranges that touch, and the two nights a year when clocks change."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from shoal.agent.hours import BadHours, Window, parse, window

BERLIN = ZoneInfo("Europe/Berlin")  # to summer time on 28 March 2027 at 2:00, back on 31 October 2027 at 3:00


def clock(zone: ZoneInfo) -> Callable[[float], time.struct_time]:
    return lambda unix: datetime.fromtimestamp(unix, zone).timetuple()


def at(text: str) -> float:
    """A moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def shown(text: str, moment: str, zone: ZoneInfo = BERLIN) -> tuple[bool, str]:
    """Whether it is lent at a moment (UTC), and until when (UTC)."""
    found = window(parse(text), at(moment), clock(zone))
    return found.is_open, datetime.fromtimestamp(found.until_unix, UTC).strftime("%Y-%m-%d %H:%M:%S")


def test_a_night_goes_over_midnight_in_the_machines_own_time() -> None:
    assert shown("22:00-07:00", "2026-11-26 20:59:59") == (False, "2026-11-26 21:00:00")
    assert shown("22:00-07:00", "2026-11-26 21:00") == (True, "2026-11-27 06:00:00")
    assert shown("22:00-07:00", "2026-11-27 05:59:59") == (True, "2026-11-27 06:00:00")
    assert shown("22:00-07:00", "2026-11-27 06:00") == (False, "2026-11-27 21:00:00")


def test_ranges_that_touch_or_overlap_are_one() -> None:
    assert shown("08:00-12:00,12:00-14:00,13:00-15:30", "2026-11-26 07:30") == (True, "2026-11-26 14:30:00")
    assert shown("08:00-12:00, 20:00-24:00", "2026-11-26 13:00") == (False, "2026-11-26 19:00:00")
    # The whole day in two halves never ends within the days that are looked at.
    found = window(parse("00:00-12:00,12:00-24:00"), at("2026-11-26 13:00"), clock(BERLIN))
    assert found.is_open
    assert found.until_unix - at("2026-11-26 13:00") > 86_400


def test_in_the_night_that_skips_an_hour_the_end_is_the_moment_after_the_gap() -> None:
    assert shown("22:00-02:30", "2027-03-28 00:00") == (True, "2027-03-28 01:00:00")  # 2:30 is not shown: 3:00 is
    assert shown("22:00-07:00", "2027-03-28 00:00") == (True, "2027-03-28 05:00:00")  # an hour less
    assert shown("02:15-02:45", "2027-03-28 00:30") == (False, "2027-03-29 00:15:00")  # not on that day


def test_in_the_night_that_repeats_an_hour_a_range_ends_and_begins_once() -> None:
    assert shown("22:00-02:30", "2027-10-31 00:15") == (True, "2027-10-31 00:30:00")
    assert shown("22:00-02:30", "2027-10-31 01:15") == (False, "2027-10-31 21:00:00")  # the clock shows 2:15 again
    assert shown("02:30-04:00", "2027-10-31 01:15") == (True, "2027-10-31 03:00:00")  # begun at the first 2:30
    assert shown("22:00-07:00", "2027-10-31 00:00") == (True, "2027-10-31 06:00:00")  # an hour more


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Kiritimati"])
def test_zones_of_odd_offsets_begin_at_the_minute_that_the_clock_shows(zone: str) -> None:
    local = clock(ZoneInfo(zone))
    for day in range(0, 365, 7):
        now = at("2027-01-01 12:34:56") + day * 86_400
        found = window(parse("21:40-06:20"), now, local)
        then = local(found.until_unix)
        assert (then.tm_hour, then.tm_min, then.tm_sec) in {(21, 40, 0), (6, 20, 0)}
        assert 0 < found.until_unix - now <= 86_400


def test_the_machines_own_zone_is_that_of_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # needs no files of time zones, which slim images lack
    time.tzset()
    try:
        assert window(parse("22:00-07:00"), at("2027-07-01 20:30")) == Window(True, at("2027-07-02 05:00"))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("22-7", "write HH:MM-HH:MM"),
        ("", "write HH:MM-HH:MM"),
        ("22:00-07:00,", "write HH:MM-HH:MM"),
        ("24:00-07:00", "they go from 00:00 to 24:00"),
        ("22:60-07:00", "they go from 00:00 to 24:00"),
        ("22:00-24:01", "they go from 00:00 to 24:00"),
        ("07:00-07:00", "leave --hours out"),
        (",".join(["01:00-02:00"] * 17), "at most 16"),
    ],
)
def test_hours_that_are_none_are_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(BadHours, match=said):
        parse(text)
