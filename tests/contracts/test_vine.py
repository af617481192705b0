"""Where completions are cut and which continuations follow: by rule alone, the same for worker, validator and trainer."""

import pytest
from pydantic import ValidationError

from shoal.contracts.algorithm import Algorithm, Prime, VinePpo
from shoal.contracts.recipe import Recipe
from shoal.contracts.vine import Continuation, VineSettings, continuations
from shoal.sampling.draw import continuation_seed

GOLDEN_SEED = 5871073501563705578
"""Of seed 7, boundary 1, number 0, from the words of `continuation_seed`."""


def test_a_completion_is_cut_into_equal_parts_and_never_at_its_end() -> None:
    assert VineSettings(segments=4).positions(100) == [25, 50, 75]
    assert VineSettings(segments=4).positions(10) == [2, 5, 7]
    for segments in (2, 3, 64):
        for length in range(1, 200):
            positions = VineSettings(segments=segments).positions(length)
            assert len(positions) == segments - 1
            assert positions == sorted(positions)
            assert positions[0] >= 0
            assert positions[-1] < length


def test_a_completion_shorter_than_its_parts_has_boundaries_that_coincide() -> None:
    assert VineSettings(segments=4).positions(2) == [0, 1, 1]
    assert VineSettings(segments=4).positions(1) == [0, 0, 0]


def test_every_completion_has_its_continuations_in_one_order() -> None:
    settings = VineSettings(segments=3, continuations=2)
    found = list(continuations(4, settings))
    assert len(found) == 4 * (settings.rows_each - 1)
    assert found[:5] == [
        Continuation(4, 0, 1, 0), Continuation(5, 0, 1, 1), Continuation(6, 0, 2, 0), Continuation(7, 0, 2, 1),
        Continuation(8, 1, 1, 0),
    ]  # fmt: skip
    assert [each.row for each in found] == list(range(4, 4 * settings.rows_each))
    assert list(continuations(4, None)) == []


def test_a_sample_index_names_one_row_of_its_group() -> None:
    settings = VineSettings(segments=3, continuations=2)
    of_two_groups = [each.sample_index(2, settings) for each in continuations(4, settings)]
    assert of_two_groups == [*range(2, 10), *range(2, 10)]


def test_seeds_of_continuations_are_fixed_by_parent_boundary_and_number() -> None:
    assert continuation_seed(7, 1, 0) == GOLDEN_SEED
    places = [
        (seed, boundary, number) for seed in (0, 7, (1 << 63) - 1) for boundary in (1, 2, 3) for number in (0, 1, 2)
    ]
    seeds = {continuation_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize("place", [(1 << 63, 1, 0), (-1, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_a_seed_of_nothing_is_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="boundaries count from 1, numbers from 0"):
        continuation_seed(*place)


def test_settings_that_would_estimate_nothing_are_refused() -> None:
    for bad in ({"segments": 1}, {"continuations": 0}, {"segments": 65}, {"continuations": 65}):
        with pytest.raises(ValidationError):
            VineSettings(**bad)


def test_a_recipe_has_values_with_its_algorithm_only() -> None:
    assert Recipe().vine is None
    assert Recipe(algorithm=Algorithm(prime=Prime())).rows_each == 1
    recipe = Recipe(algorithm=Algorithm(vineppo=VinePpo()))
    assert (recipe.vine, recipe.group_size, recipe.rows_each) == (VineSettings(), 8, 13)
    assert Recipe(algorithm=Algorithm(vineppo=VinePpo(segments=2, continuations=1))).rows_each == 2
