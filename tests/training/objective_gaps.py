"""How far our loss of an optimizer batch and its gradient are from the plain formulas of `reference_objectives`, in float64, for every objective.

Called by `test_batch_objectives` and by `benchmarks/objectives`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import reference_objectives as reference
import torch

from shoal.contracts.corrections import MismatchCorrection
from shoal.training.completions import Packed
from shoal.training.corrections import Correcting
from shoal.training.loss import SUMS, LossWeights, MicroLoss, SourceLoss, SourceLosses
from shoal.training.objectives import OBJECTIVES

LENGTHS = (1, 9, 4, 17, 6, 12)
LONGEST = 20
TILE = 10
NUMBERS = LossWeights(epsilon=0.2, delta=4.0, kl=0.3, entropy=0.1, epsilon_high=0.28, max_divergence=0.01)
PLAIN = reference.Rule()


@dataclass(frozen=True)
class Case:
    """An objective with its numbers and a correction, the latter also as the reference spells it."""

    objective: str
    weights: LossWeights = NUMBERS
    correction: MismatchCorrection | None = None
    rule: reference.Rule = PLAIN


def corrected(rule: reference.Rule, **given: Any) -> Case:
    return Case("two_sided_grpo", correction=MismatchCorrection(**given), rule=rule)


CASES: dict[str, Case] = {
    **{name: Case(name) for name in OBJECTIVES},
    "dppo_kl": Case("dppo", replace(NUMBERS, kl_divergence=True, max_divergence=0.005)),
    "decoupled_ppo_capped": Case("decoupled_ppo", replace(NUMBERS, importance_cap=1.5)),
    "truncated_importance_sampling": corrected(reference.Rule(truncate=1.5), truncate={"cap": 1.5}),
    "masked_importance_sampling": corrected(reference.Rule(mask=1.5), mask={"cap": 1.5}),
    "icepop": corrected(reference.Rule(icepop=(0.5, 1.5)), icepop={"low": 0.5, "high": 1.5}),
    "sequence_mask": corrected(reference.Rule(sequence=(0.9, 1.1)), sequence={"low": 0.9, "high": 1.1}),
    "gspo_with_icepop_and_sequence_mask": Case(
        "gspo",
        correction=MismatchCorrection(icepop={"low": 0.5, "high": 1.5}, sequence={"low": 0.8, "high": 1.25}),
        rule=reference.Rule(icepop=(0.5, 1.5), sequence=(0.8, 1.25)),
    ),
}


@dataclass(frozen=True)
class Gap:
    """Greatest absolute differences of the loss and of its gradient, and our `SUMS` by name."""

    loss: float
    gradient: float
    sums: dict[str, float]
    completions: list[list[reference.Token]]
    by_source: list[dict[str, float]] = field(default_factory=list)


def batch(seed: int = 3) -> list[list[reference.Token]]:
    """Completions with ratios from 1/20 to 20, some of whose engines were off as a whole."""
    chance = np.random.default_rng(seed)
    made = []
    for length in LENGTHS:
        advantage, drift, off = float(chance.normal()), chance.uniform(-0.6, 0.6), chance.uniform(-0.4, 0.4)
        tokens = []
        for _ in range(length):
            old = -3 - 5 * chance.random()
            tokens.append(
                reference.Token(
                    logprob=old + drift + chance.uniform(-2.4, 2.4),
                    entropy=chance.random(),
                    old=old,
                    base=old + chance.uniform(-1, 1),
                    advantage=advantage,
                    behaviour=old + chance.uniform(-1, 1),
                    engine=old + off + chance.uniform(-0.6, 0.6),
                )
            )
        made.append(tokens)
    return made


def measure(case: Case) -> Gap:
    """Our loss, asked for tile by tile as the head does, against the formulas."""
    loss = SourceLoss("", OBJECTIVES[case.objective], case.weights)
    formula = (case.objective, numbers_of(case.weights))

    def wanted(completions: Sequence[Sequence[reference.Token]]) -> float:
        return reference.batch_loss(formula[0], completions, formula[1], case.rule, LONGEST)

    return _measure([loss], None, case.correction, wanted)


MIXTURE = [
    Case("two_sided_grpo"),
    Case("gspo", replace(NUMBERS, epsilon=0.05, epsilon_high=0.1)),
    Case("dr_grpo"),
    Case("dppo"),
    Case("cispo", replace(NUMBERS, epsilon=1.0)),
]
FACTORS = [1.0, 0.5, 3.0, 2.0, 0.125]
OWNERS = [1, 0, 2, 3, 1, 4]
"""Which source each completion of `batch` is of."""


def measure_mixture(case: Case = CASES["icepop"]) -> Gap:
    """Completions of five sources, each with its own objective and factor, and the correction of `case`."""
    losses = [
        SourceLoss(f"source-{number}", OBJECTIVES[each.objective], each.weights, factor)
        for number, (each, factor) in enumerate(zip(MIXTURE, FACTORS, strict=True))
    ]
    sources = [
        reference.Source(MIXTURE[owner].objective, numbers_of(MIXTURE[owner].weights), FACTORS[owner])
        for owner in OWNERS
    ]

    def wanted(completions: Sequence[Sequence[reference.Token]]) -> float:
        return reference.mixture_loss(sources, completions, case.rule, LONGEST)

    return _measure(losses, OWNERS, case.correction, wanted)


def _measure(
    losses: list[SourceLoss],
    of_completions: Sequence[int] | None,
    asked: MismatchCorrection | None,
    formula: Callable[[Sequence[Sequence[reference.Token]]], float],
) -> Gap:
    completions = batch()
    flat = [token for completion in completions for token in completion]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in flat], dtype=torch.float64)

    owners = torch.tensor([number for number, each in enumerate(completions) for _ in each])
    packed = Packed(owners, len(completions))
    kinds = {"tokens": len(flat), "longest_completions": len(completions) * LONGEST, "completions": len(completions)}
    divisors = [float(kinds[loss.objective.divisor]) for loss in losses]
    correction = asked and Correcting(asked, column("engine"), packed)
    sources = SourceLosses(losses, torch.zeros(len(losses), len(SUMS), dtype=torch.float64))
    micro = MicroLoss(
        old=column("old"),
        reference=column("base"),
        advantages=column("advantage"),
        behaviour=column("behaviour"),
        objective=losses[0].objective,
        weights=losses[0].weights,
        divisor=divisors[0],
        completions=packed,
        correction=correction,
        sources=None if of_completions is None else sources,
        owners=None if of_completions is None else torch.tensor(of_completions)[owners],
        divisors=divisors,
    )
    logprobs, entropy = column("logprob").requires_grad_(), column("entropy")
    if any(loss.objective.whole_completions for loss in losses):
        micro.look(logprobs.detach())
    loss = torch.zeros((), dtype=torch.float64)
    for start in range(0, len(flat), TILE):
        here = slice(start, min(start + TILE, len(flat)))
        loss = loss + micro(here, logprobs[here], entropy[here])
    loss.backward()
    wanted = torch.tensor(reference.gradient(formula, completions), dtype=torch.float64)
    assert logprobs.grad is not None
    return Gap(
        loss=abs(float(loss.detach()) - formula(completions)),
        gradient=float((logprobs.grad - wanted).abs().max()),
        sums=dict(zip(SUMS, micro.sums.tolist(), strict=True)),
        completions=completions,
        by_source=[dict(zip(SUMS, each, strict=True)) for each in sources.sums.tolist()],
    )


def numbers_of(weights: LossWeights) -> reference.Numbers:
    """The same numbers, as the reference spells them."""
    return reference.Numbers(
        low=weights.epsilon,
        high=weights.high,
        delta=weights.delta or 0.0,
        kl=weights.kl,
        entropy=weights.entropy,
        cap=weights.importance_cap,
        divergence=weights.max_divergence,
        kl_divergence=weights.kl_divergence,
    )
