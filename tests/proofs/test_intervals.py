"""Clopper-Pearson intervals, against values from tables and the binomial distribution itself."""

import pytest

from shoal.proofs.calibration import error_rate


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.30850),  # 1 - 0.025 ** (1 / 10)
        (10, 10, 0.69150, 1.0),
        (1, 10, 0.00253, 0.44502),
        (5, 10, 0.18709, 0.81291),
        (0, 1000, 0.0, 0.0036821),
        (999, 1000, 0.99444, 0.999975),
    ],
)
def test_intervals_are_those_of_the_tables(events: int, trials: int, low: float, high: float) -> None:
    rate = error_rate(events, trials)
    assert (rate.events, rate.trials) == (events, trials)
    assert rate.low == pytest.approx(low, abs=2e-5)
    assert rate.high == pytest.approx(high, abs=2e-5)


def test_of_no_trials_nothing_is_known() -> None:
    assert (error_rate(0, 0).low, error_rate(0, 0).high) == (0.0, 1.0)


def test_more_events_than_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="3 events in 2 trials"):
        error_rate(3, 2)
