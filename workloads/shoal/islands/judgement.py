"""What each contribution of a round counts, over all ranks of an island, and the state that follows.

In: what every rank of this island received. Out: the factors, the reasons where they are not 1, and the new state. An island speaks with one voice:
one that says other things in the header of one rank than in that of another does not count. Pure; called by `island`.

A vector is clipped by norm and weighed by whether it points where most others do, both from the contributions' inner products. One hostile island
among three or more can scale its vector, turn it round or send noise, and moves the mean by little: its length is held to 2.5
times the median; what agrees with the majority less than half as well as is usual counts less, down to nothing. With two islands nobody can say
which is wrong; norms alone are held. Decisions are made from numbers rounded to a coarse grid, so that two machines whose sums differ in the last
bits decide alike.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

import torch
from jaxtyping import Float64
from torch import Tensor

from shoal.contracts.islands import ExchangeType
from shoal.islands.contributions import Received, inner_products, mean_of
from shoal.islands.outer import OuterSettings, outer_step
from shoal.islands.shared import Meta, SharedState

LONGEST = 2.5
"""Times the median norm. Honest islands of one run differ by about ten per cent, and by a factor of two where their data do."""
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
        """The weight of each vector in the mean; all 0 when nothing counts."""
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


Voice = tuple[bool, int, float]
"""Fields of an island's header that must be equal on all ranks: `contributes`, `position`, `inner_seconds`."""


@dataclass(frozen=True)
class RankPart:
    """The messages that one rank received: inner products of its parts, what is wrong with whom, and what the islands say."""

    gram: Float64[Tensor, "islands islands"]
    problems: dict[str, str]
    voices: list[Voice | None]


@dataclass(frozen=True)
class Judged:
    """`coefficients` of those whose vectors were decoded; `problems` says of the others, and of those that count less, why."""

    coefficients: dict[str, float]
    problems: dict[str, str]
    reference: float | None


def part_of(received: Sequence[Received], count: int, kind: ExchangeType) -> RankPart:
    """This rank's part."""
    gram, bad = inner_products(received, count, kind)
    problems = {one.island: one.problem for one in received if one.problem is not None} | bad
    voices = [
        None if (said := one.header) is None else (said.contributes, said.position, said.inner_seconds)
        for one in received
    ]
    return RankPart(gram, problems, voices)


def judge_parts(parts: Sequence[RankPart], received: Sequence[Received], reference: float | None) -> Judged:
    """Judge by the parts of all ranks, in their order: the same on each of them."""
    problems = {island: why for part in reversed(parts) for island, why in part.problems.items()}
    for index, one in enumerate(received):
        voices = {part.voices[index] for part in parts}
        if len(voices) > 1:
            problems.setdefault(one.island, "it sends different values to different ranks")
    total = torch.stack([part.gram for part in parts]).sum(dim=0)
    chosen = [i for i, one in enumerate(received) if one.counts and one.island not in problems]
    judged = judge([[float(total[i, j]) for j in chosen] for i in chosen], reference)
    coefficients = {received[i].island: value for i, value in zip(chosen, judged.coefficients, strict=True)}
    for island, found in zip((received[i].island for i in chosen), judged.each, strict=True):
        if found.weight < 1 or found.factor < 1:
            problems.setdefault(
                island,
                f"norm {found.norm:.3g}, agreement {found.agreement:.3f}: counts {found.weight:.2f},"
                f" shortened to {found.factor:.3f}",
            )
    return Judged(coefficients, problems, judged.reference)


def counted(received: Sequence[Received], judged: Judged) -> list[Received]:
    """Those whose vectors are in the mean."""
    return [one for one in received if judged.coefficients.get(one.island, 0.0) > 0 and one.header is not None]


def state_after(
    shared: SharedState,
    received: Sequence[Received],
    judged: Judged,
    kind: ExchangeType,
    outer: OuterSettings,
    trained: Collection[str],
) -> SharedState:
    """The state after the round, as new vectors; `shared` itself where nothing counts. What a round usually takes is learnt from those of `trained`,
    by name: the others have just started."""
    used = counted(received, judged)
    if not used:
        return shared
    mean = mean_of(received, judged.coefficients, len(shared.weights), kind)
    weights, momentum = shared.weights.clone(), shared.momentum.clone()
    outer_step(weights, momentum, mean, outer)
    headers = [one.header for one in used if one.header is not None]
    times = [header.inner_seconds for header in headers if header.island in trained]
    meta = Meta(
        round=shared.meta.round + 1,
        reference=judged.reference,
        inner_seconds=float(median_low(times)) if times else shared.meta.inner_seconds,
        position=median_low([header.position for header in headers]),
    )
    return SharedState(meta, weights, momentum)
