"""e2e/learning.py: a rise of rewards is told from noise, at the rates that the story's test promises. Series have the noise of real runs."""

import random

import pytest
from e2e.learning import FEWEST, rise
from e2e.test_story import LEARNT, RISEN_ERRORS

NOISE = 0.085
"""Deviation of one step's mean reward in a run with the story's recipe, outside a cluster."""
GAIN = 0.25
"""Of a straight line whose thirds differ by 0.17, as those of that run did."""
DRAWS = 3000


def passing(gain: float) -> float:
    """Share of runs that the story takes for learning when the reward goes from 0.42 to `gain` above it."""
    chance = random.Random(f"{gain}")

    def series() -> list[float]:
        return [0.42 + gain * step / LEARNT + chance.gauss(0.0, NOISE) for step in range(LEARNT)]

    return sum(rise(series()).errors > RISEN_ERRORS for _ in range(DRAWS)) / DRAWS


def test_a_run_that_learns_as_the_example_does_passes() -> None:
    assert passing(GAIN) > 0.99


def test_a_run_that_stands_still_passes_a_few_times_in_a_thousand_and_one_that_unlearns_never() -> None:
    assert 0.0 < passing(0.0) < 0.005
    assert passing(-0.05) == 0.0


def test_a_rise_is_counted_in_errors_of_its_own_noise() -> None:
    found = rise([0.4, 0.5] * 15 + [0.6, 0.7] * 15 + [0.8, 0.9] * 15)
    assert found.difference == pytest.approx(0.4)
    # Half of 0.1 squared, and twice the 0.3 squared of hardly any steps between the thirds.
    variance = (87 * 0.1**2 + 2 * 0.1**2) / (2 * 89)
    assert found.error == pytest.approx((2 * variance / 30) ** 0.5, rel=0.05)
    assert found.errors == pytest.approx(found.difference / found.error)


def test_rewards_that_never_change_have_not_risen() -> None:
    assert not rise([0.5] * FEWEST).errors > 0
    assert rise([0.0] * 10 + [1.0] * 20).errors > RISEN_ERRORS


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="29 steps tell no rise from noise; 30 do"):
        rise([0.5] * (FEWEST - 1))
