"""How long to wait between attempts."""

from datetime import UTC, datetime

import pytest

from shoal_operator.engine.backoff import (
    MAX_RETRY_AFTER_SECONDS,
    MIN_RETRY_AFTER_SECONDS,
    Backoff,
    delay_seconds,
    retry_after_seconds,
)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.999])
def test_a_delay_is_between_half_and_all_of_its_power_of_two(chance: float) -> None:
    for attempt in range(10):
        whole = min(60.0, 0.25 * 2**attempt)
        found = delay_seconds(attempt, first=0.25, cap=60.0, random_=lambda: chance)
        assert whole / 2 <= found <= whole
        assert found == whole * (1 - chance / 2)


def test_a_year_of_failures_does_not_overflow() -> None:
    assert delay_seconds(500_000, first=0.25, cap=60.0, random_=lambda: 0.0) == 60.0


def test_backoff_begins_anew_after_a_success() -> None:
    backoff = Backoff(1.0, 8.0, lambda: 0.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    backoff.reset()
    assert backoff.next() == 1.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("٣", None),  # a digit, but not one of HTTP's
        ("0", MIN_RETRY_AFTER_SECONDS),
        (" 7 ", 7.0),
        ("86400", MAX_RETRY_AFTER_SECONDS),
        ("Sat, 21 Nov 2026 12:00:05 GMT", 5.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", MIN_RETRY_AFTER_SECONDS),
        ("Mon, 21 Nov 2033 12:00:00 GMT", MAX_RETRY_AFTER_SECONDS),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_never_longer_than_the_bound(
    header: str | None, seconds: float | None
) -> None:
    assert retry_after_seconds(header, datetime(2026, 11, 21, 12, tzinfo=UTC)) == seconds
