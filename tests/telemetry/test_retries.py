"""How long to wait between tries, when to stop, and what is said meanwhile."""

import threading
import time
from datetime import UTC, datetime

import pytest

from shoal import telemetry
from shoal.retries import (
    MAX_RETRY_AFTER_SECONDS,
    MIN_RETRY_AFTER_SECONDS,
    Backoff,
    doubled,
    retry_after_seconds,
    retrying,
)

EXACT = Backoff(1.0, 8.0, lambda: 0.0)


class Away(Exception):
    """What passes by itself."""


class Failing:
    """A call that fails `times` times."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.calls, self._times, self._error = 0, times, error or Away("no answer")

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._times:
            raise self._error
        return "done"


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.999])
def test_a_wait_is_between_half_and_all_of_its_power_of_two(chance: float) -> None:
    backoff = Backoff(0.25, 60.0, lambda: chance)
    for failures in range(1, 10):
        whole = min(60.0, 0.25 * 2 ** (failures - 1))
        assert backoff.next() == whole * (1 - chance / 2)


def test_a_year_of_failures_does_not_overflow() -> None:
    assert doubled(500_000, 0.25, 60.0) == 60.0
    assert EXACT.after(500_000) == 8.0


def test_waits_begin_anew_after_a_success() -> None:
    backoff = Backoff(1.0, 8.0, lambda: 0.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_a_call_is_repeated_until_it_succeeds_and_each_failure_is_said() -> None:
    call, waits, said = Failing(3), list[float](), list[str]()
    patient = retrying(
        (Away,), EXACT, deadline_seconds=60.0, pause=waits.append, say=lambda error, waited: said.append(str(error))
    )
    assert patient(call) == "done"
    assert (call.calls, waits, said) == (4, [1.0, 2.0, 4.0], ["no answer"] * 3)


def test_no_try_begins_after_the_deadline_and_the_error_says_what_was_waited_for() -> None:
    call = Failing(100)
    patient = retrying(
        (Away,),
        Backoff(0.01, 0.02),
        deadline_seconds=0.2,
        give_up=lambda error, waited: TimeoutError(f"the store gave nothing in {waited:.1f} s: {error}"),
    )
    with pytest.raises(TimeoutError, match=r"the store gave nothing in 0\.[12] s: no answer") as caught:
        patient(call)
    assert isinstance(caught.value.__cause__, Away)
    assert 3 < call.calls < 100


def test_a_deadline_of_zero_is_a_single_try_and_its_error_is_raised() -> None:
    call = Failing(1)
    with pytest.raises(Away):
        retrying((Away,), EXACT, deadline_seconds=0.0)(call)
    assert call.calls == 1


def test_an_error_that_another_try_does_not_help_goes_through() -> None:
    call = Failing(1, KeyError("wrong"))
    with pytest.raises(KeyError):
        retrying(lambda error: isinstance(error, Away), EXACT, deadline_seconds=60.0)(call)
    assert call.calls == 1


def test_a_pause_that_the_other_side_asks_for_is_kept_and_one_beyond_the_deadline_ends_the_waiting() -> None:
    waits = list[float]()
    retrying((Away,), EXACT, deadline_seconds=60.0, asked=lambda _: 7.0, pause=waits.append)(Failing(2))
    assert waits == [7.0, 7.0]
    call = Failing(2)
    with pytest.raises(Away):
        retrying((Away,), EXACT, deadline_seconds=5.0, asked=lambda _: 7.0)(call)
    assert call.calls == 1


def test_a_pause_may_end_the_waiting() -> None:
    def stopped(seconds: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        retrying((Away,), EXACT, deadline_seconds=60.0, pause=stopped)(Failing(1))


def test_threads_that_share_one_policy_count_for_themselves() -> None:
    patient = retrying((Away,), Backoff(0.001, 0.002), deadline_seconds=60.0)
    calls = [Failing(times) for times in range(8)]
    threads = [threading.Thread(target=patient, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert [call.calls for call in calls] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_turns_go_on_after_failures_until_the_process_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr("shoal.telemetry.waiting.STOP", stop)
    call = Failing(3)

    def turn() -> float:
        if call() == "done" and call.calls == 6:
            stop.set()
        return 0.0

    began = time.monotonic()
    telemetry.until_stopped("test", turn, (Away,), 0.01, 0.02)
    assert call.calls == 6
    assert time.monotonic() - began >= 0.01
    stop.clear()
    with pytest.raises(ValueError, match="a defect"):
        telemetry.until_stopped("test", Failing(1, ValueError("a defect")), (Away,), 0.01, 0.02)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("٣", None),  # a digit, but not one of HTTP's
        ("nan", None),
        ("1e999", None),
        ("0", MIN_RETRY_AFTER_SECONDS),
        ("0.5", 0.5),
        (" 7 ", 7.0),
        ("86400", MAX_RETRY_AFTER_SECONDS),
        ("Sat, 21 Nov 2026 12:00:05 GMT", 5.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", MIN_RETRY_AFTER_SECONDS),
        ("Mon, 21 Nov 2033 12:00:00 GMT", MAX_RETRY_AFTER_SECONDS),
        ("Mon, 21 Nov 20330000000 12:00:00 GMT", None),  # a year that no integer of the platform holds
    ],
)
def test_retry_after_is_seconds_or_a_date_and_never_longer_than_the_bound(
    header: str | None, seconds: float | None
) -> None:
    assert retry_after_seconds(header, datetime(2026, 11, 21, 12, tzinfo=UTC)) == seconds
