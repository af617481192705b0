"""How far our loss of an optimizer batch and its gradient are from the plain formulas of `reference_objectives`, in float64, for every objective.

Called by `test_batch_objectives` and by `benchmarks/objectives`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import reference_objectives as reference
import torch

from shoal.contracts.corrections import MismatchCorrection
from shoal.training.completions import Packed
from shoal.training.corrections import Correcting
from shoal.training.loss import SUMS, LossWeights, MicroLoss
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
    completions = batch()
    flat = [token for completion in completions for token in completion]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in flat], dtype=torch.float64)

    owners = torch.tensor([number for number, each in enumerate(completions) for _ in each])
    objective, packed = OBJECTIVES[case.objective], Packed(owners, len(completions))
    divisors = {"tokens": len(flat), "longest_completions": len(completions) * LONGEST, "completions": len(completions)}
    correction = case.correction and Correcting(case.correction, column("engine"), packed)
    micro = MicroLoss(
        old=column("old"),
        reference=column("base"),
        advantages=column("advantage"),
        behaviour=column("behaviour"),
        objective=objective,
        weights=case.weights,
        divisor=float(divisors[objective.divisor]),
        completions=packed,
        correction=correction,
    )
    logprobs, entropy = column("logprob").requires_grad_(), column("entropy")
    if objective.whole_completions:
        micro.look(logprobs.detach())
    loss = torch.zeros((), dtype=torch.float64)
    for start in range(0, len(flat), TILE):
        here = slice(start, min(start + TILE, len(flat)))
        loss = loss + micro(here, logprobs[here], entropy[here])
    loss.backward()
    weights = case.weights
    numbers = reference.Numbers(
        low=weights.epsilon,
        high=weights.high,
        delta=weights.delta or 0.0,
        kl=weights.kl,
        entropy=weights.entropy,
        cap=weights.importance_cap,
        divergence=weights.max_divergence,
        kl_divergence=weights.kl_divergence,
    )
    arguments = (case.objective, completions, numbers, case.rule, LONGEST)
    wanted = torch.tensor(reference.batch_gradient(*arguments), dtype=torch.float64)
    assert logprobs.grad is not None
    return Gap(
        loss=abs(float(loss.detach()) - reference.batch_loss(*arguments)),
        gradient=float((logprobs.grad - wanted).abs().max()),
        sums=dict(zip(SUMS, micro.sums.tolist(), strict=True)),
        completions=completions,
    )
