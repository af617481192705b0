"""Advantages: relative to the group, zero when the group says nothing, and never poisoned by a bad reward."""

import numpy as np
import pytest

from shoal.training.advantages import group_advantages


def test_advantages_are_rewards_relative_to_the_group_in_deviations() -> None:
    found = group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), normalize=True)
    np.testing.assert_allclose(found, [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])


def test_without_normalisation_only_the_mean_is_taken_off() -> None:
    np.testing.assert_allclose(group_advantages(np.array([1.0, 0.5, 0.0]), normalize=False), [0.5, 0.0, -0.5])


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    found = group_advantages(np.array([1.0, 0.5, 0.0]), normalize=False, leave_one_out=True)
    np.testing.assert_allclose(found, [1.0 - 0.25, 0.5 - 0.5, 0.0 - 0.75])


@pytest.mark.parametrize("rewards", [[0.7], [0.3] * 5, [0.1 + 0.2, 0.3]])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_equal_rewards_and_groups_of_one_have_no_advantage(
    rewards: list[float], normalize: bool, leave_one_out: bool
) -> None:
    found = group_advantages(np.array(rewards), normalize=normalize, leave_one_out=leave_one_out)
    np.testing.assert_array_equal(found, 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_refused_by_its_place(bad: float) -> None:
    with pytest.raises(ValueError, match=r"reward 1 of the group is .*; allowed: finite numbers"):
        group_advantages(np.array([0.0, bad, 1.0]), normalize=True)


def test_a_group_without_rewards_is_refused() -> None:
    with pytest.raises(ValueError, match="a group has no rewards; allowed: one or more"):
        group_advantages(np.array([]), normalize=True)
