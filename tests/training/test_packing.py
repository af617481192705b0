"""Packing: every sample once, whole, and little room wasted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.training.packing import density, pack

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


def test_long_completions_fill_99_percent_of_bins_of_the_papers_length() -> None:
    sizes = np.random.default_rng(0).integers(500, 16_000, 512).tolist()
    assert density(sizes, pack(sizes, 32_768), 32_768) > 0.99


@pytest.mark.parametrize("size", [0, 101])
def test_a_sample_that_is_empty_or_does_not_fit_is_an_error_and_never_cut(size: int) -> None:
    with pytest.raises(ValueError, match=rf"sample 1 has {size} tokens; allowed: 1 to 100"):
        pack([5, size], 100)
