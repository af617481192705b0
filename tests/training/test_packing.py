"""Packing: every sample once, whole, and little room wasted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.training.packing import cost, deal, density, pack

lengths = st.lists(st.integers(1, 100), min_size=1, max_size=200)


@given(lengths)
def test_every_sample_is_in_exactly_one_bin_and_no_bin_overflows(sizes: list[int]) -> None:
    bins = pack(sizes, 100)
    assert sorted(index for members in bins for index in members) == list(range(len(sizes)))
    assert all(sum(sizes[index] for index in members) <= 100 for members in bins)


@given(lengths)
def test_no_two_bins_would_fit_into_one(sizes: list[int]) -> None:
    filled = sorted(sum(sizes[index] for index in members) for members in pack(sizes, 100))
    assert len(filled) == 1 or filled[0] + filled[1] > 100


PAPERS_LENGTHS = {"short run": 4_500, "long run": 8_500}
"""Median tokens of a row. Targets of 1,000 to 4,000 and of 2,000 to 10,000 thinking tokens (paper section 4.1), prompt and answer beside them."""


@pytest.mark.parametrize("median", PAPERS_LENGTHS.values(), ids=PAPERS_LENGTHS)
@pytest.mark.parametrize("seed", range(5))
def test_98_percent_of_a_32k_bin_is_filled_on_the_papers_length_distribution(median: int, seed: int) -> None:
    spread = np.random.default_rng(seed).lognormal(np.log(median), 0.5, 512)
    sizes = np.minimum(spread, 32_768).astype(int).tolist()
    assert density(sizes, pack(sizes, 32_768), 32_768) >= 0.98


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=60), st.integers(1, 9))
def test_every_bin_is_dealt_to_one_rank_and_ranks_meet_equally_often(costs: list[float], ranks: int) -> None:
    dealt = deal(costs, ranks)
    assert len(dealt) == ranks
    assert {len(bins) for bins in dealt} == {-(-len(costs) // ranks)}
    assert sorted(index for bins in dealt for index in bins if index is not None) == list(range(len(costs)))


def test_ranks_wait_little_for_one_another() -> None:
    sizes = np.random.default_rng(0).lognormal(np.log(8_500), 0.5, 512).clip(max=32_768).astype(int).tolist()
    costs = [cost([sizes[index] for index in members]) for members in pack(sizes, 32_768)]
    dealt = deal(costs, 8)
    paid = [[0.0 if index is None else costs[index] for index in bins] for bins in dealt]
    waited_for = sum(max(here) for here in zip(*paid, strict=True))
    at_best = max(sum(costs) / 8, len(paid[0]) * min(costs))
    assert waited_for < 1.1 * at_best
    in_order = [costs[start : start + 8] for start in range(0, len(costs), 8)]
    assert waited_for < sum(max(here) for here in in_order)


def test_a_long_sample_costs_more_than_short_ones_of_the_same_length_together() -> None:
    assert cost([32_000]) > 1.3 * cost([1000] * 32)


@pytest.mark.parametrize("size", [0, 101])
def test_a_sample_that_is_empty_or_does_not_fit_is_an_error_and_never_cut(size: int) -> None:
    with pytest.raises(ValueError, match=rf"sample 1 has {size} tokens; allowed: 1 to 100"):
        pack([5, size], 100)
