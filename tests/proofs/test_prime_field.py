"""Arithmetic over GF(65497), against Python's own integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.toploc.prime_field import PRIME, evaluate, interpolate

RESIDUES = st.integers(0, PRIME - 1)


@st.composite
def points(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Up to 128 points with different x; the extremes of the field are drawn often."""
    count = draw(st.sampled_from([1, 2, 3, 16, 17, 64, 127, 128]))
    seed, edges = draw(st.integers(0, 2**32 - 1)), draw(st.lists(RESIDUES, max_size=4))
    random = np.random.default_rng(seed)
    x = list(dict.fromkeys([*edges[:count], 0, PRIME - 1, *random.permutation(PRIME)[:count].tolist()]))[:count]
    extremes = draw(st.booleans())
    y = (
        random.choice([0, 1, PRIME // 2, PRIME // 2 + 1, PRIME - 1], count)
        if extremes
        else random.integers(0, PRIME, count)
    )
    return x, y.tolist()


def horner(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


@settings(max_examples=150, deadline=None)
@given(points())
def test_the_polynomial_goes_through_its_points(given_points: tuple[list[int], list[int]]) -> None:
    x, y = given_points
    coefficients = interpolate(np.array([x]), np.array([y]))[0].tolist()
    assert all(0 <= coefficient < PRIME for coefficient in coefficients)
    assert [horner(coefficients, each) for each in x] == y


@settings(max_examples=100, deadline=None)
@given(st.lists(RESIDUES, min_size=1, max_size=128), st.lists(RESIDUES, min_size=1, max_size=20))
def test_values_are_those_of_horners_rule(coefficients: list[int], x: list[int]) -> None:
    values = evaluate(np.array([coefficients]), np.array([x]))[0].tolist()
    assert values == [horner(coefficients, each) for each in x]


@pytest.mark.parametrize("extreme", [0, 1, PRIME // 2, PRIME // 2 + 1, PRIME - 1])
def test_sums_of_extremes_stay_exact(extreme: int) -> None:
    """All coefficients and points as far from zero as can be: where float64 would first lose a bit."""
    x = np.array([[1, PRIME - 1, PRIME // 2, PRIME // 2 + 1]])
    coefficients = [extreme] * 128
    assert evaluate(np.array([coefficients]), x)[0].tolist() == [horner(coefficients, each) for each in x[0].tolist()]


def test_many_polynomials_are_worked_out_as_each_alone() -> None:
    random = np.random.default_rng(0)
    x = np.stack([random.permutation(PRIME)[:128] for _ in range(100)])
    y = random.integers(0, PRIME, (100, 128))
    together = interpolate(x, y)
    assert (together == np.concatenate([interpolate(x[i : i + 1], y[i : i + 1]) for i in range(100)])).all()
    assert (evaluate(together, x) == y).all()
