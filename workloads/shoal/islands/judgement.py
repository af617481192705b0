"""What each contribution of a round counts, over all ranks of an island, and the state that follows.

In: what every rank of this island received. Out: the factors, the reasons where they are not 1, and the new state. An island speaks with one voice:
one that says other things in the header of one rank than in that of another does not count. Pure; called by `island`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_low

import torch
from jaxtyping import Float64
from torch import Tensor

from shoal.islands.contributions import Received, inner_products, mean_of
from shoal.islands.encoding import ExchangeType
from shoal.islands.outer import OuterSettings, outer_step
from shoal.islands.robust import judge
from shoal.islands.shared import Meta, SharedState

Voice = tuple[bool, int, float]
"""What an island's header says that must be the same on all ranks: `contributes`, `position`, `inner_seconds`."""


@dataclass(frozen=True)
class RankPart:
    """What one rank received: inner products of its parts, what is wrong with whom, and what the islands say."""

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
            problems.setdefault(one.island, "it says one thing to one rank and another to the next")
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
