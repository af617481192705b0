"""How much each island's pseudo-gradient counts: clipped by norm, weighed by whether it points where most others do.

In: the inner products of all contributions (their Gram matrix). Out: one factor and one weight each. One hostile island among three or more can
scale its vector, turn it round or send noise, and moves the mean by little: its length is held to 2.5 times the median, and what agrees with the
majority less than half as well as is usual counts less, down to nothing. With two islands nobody can say which is wrong; norms alone are held.

All decisions are made from numbers rounded to a coarse grid, so that two machines whose sums differ in the last bits decide alike. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

LONGEST = 2.5
"""Times the median norm. Honest islands of one run differ by some ten per cent, and by a factor of two where their data do."""
FULL_AGREEMENT = 0.5
"""Of the median agreement, from which on a contribution counts in full: honest islands with data of their own stay above it."""
NORM_BITS, COSINE_STEPS = 12, 1024
"""The grid: norms to 12 bits, cosines to 1/1024. Sums in float64 of the same numbers differ by 1e-13 between machines."""


@dataclass(frozen=True)
class Judgement:
    """`factor` shortens the vector, `weight` (0 to 1) is its share before the weights are made to sum to one."""

    norm: float
    agreement: float
    factor: float
    weight: float


@dataclass(frozen=True)
class WeighedContributions:
    """Of all contributions, in their order. `reference` is the norm that they were held against, to be kept for the next round."""

    each: list[Judgement]
    reference: float | None

    @property
    def coefficients(self) -> list[float]:
        """What each vector is multiplied with in the mean; all 0 when nothing counts."""
        total = sum(one.weight for one in self.each)
        return [one.factor * one.weight / total if total > 0 else 0.0 for one in self.each]


def judge(gram: Sequence[Sequence[float]], previous: float | None = None) -> WeighedContributions:
    """Judge contributions by their inner products `gram[i][j]`. `previous` is the last round's reference norm, one more vote for the median.

    Raises ValueError when the matrix is not square or not finite.
    """
    count = len(gram)
    if any(len(row) != count for row in gram) or not all(math.isfinite(value) for row in gram for value in row):
        raise ValueError("the matrix of inner products is not square, or not finite")
    norms = [coarse(math.sqrt(max(0.0, gram[i][i]))) for i in range(count)]
    positive = [norm for norm in norms if norm > 0]
    if not positive:
        return WeighedContributions([Judgement(0.0, 0.0, 1.0, 0.0) for _ in norms], previous)
    reference = median_low(positive if previous is None else [*positive, previous])
    agreements = [_agreement(gram, norms, i) for i in range(count)]
    usual = median_high(agreements)
    each = []
    for norm, agreement in zip(norms, agreements, strict=True):
        if norm == 0:
            weight = 0.0
        elif usual <= 0:
            weight = 1.0  # there is no direction that most share, so nobody is off it
        else:
            weight = min(1.0, max(0.0, agreement / (FULL_AGREEMENT * usual)))
        factor = min(1.0, LONGEST * reference / norm) if norm > 0 else 1.0
        each.append(Judgement(norm, agreement, factor, weight))
    return WeighedContributions(each, reference)


def _agreement(gram: Sequence[Sequence[float]], norms: Sequence[float], i: int) -> float:
    """The upper median of the cosines to the others: with a majority of honest islands it is a cosine to an honest one at best, and the honest
    have theirs from one another. Of the only one it is 1."""
    cosines = [
        round(COSINE_STEPS * gram[i][j] / (norms[i] * norms[j])) / COSINE_STEPS
        if norms[i] > 0 and norms[j] > 0
        else 0.0
        for j in range(len(norms))
        if j != i
    ]
    return median_high(cosines) if cosines else 1.0


def coarse(value: float) -> float:
    """Rounded to 12 bits of mantissa."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * (1 << NORM_BITS)), exponent - NORM_BITS)
