"""The updates of one step: old and reference log-probabilities once, then the optimizer steps (paper section 3.4).

In: policy, reference model, optimizer and the plan of a step. Out: the policy changed in place, and what was measured. The old
log-probabilities are the trainer's own, with the weights at the start of the step; the workers' are used for the mismatch
metric only. Called by `loop`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoal.contracts.recipe import Recipe
from shoal.training.batches import MicroBatch, OptimizerBatch, StepPlan
from shoal.training.logprobs import token_logprobs
from shoal.training.loss import LossInputs, LossSums, LossWeights, grpo_loss
from shoal.training.optimizer import Applied, Optimizer

Beat = Callable[[], None]
"""Called after every micro-batch: progress was made."""


@dataclass(frozen=True)
class Updates:
    """What the optimizer steps of a step did: means over tokens, and every step's norm and whether it was applied."""

    loss: float
    kl: float
    entropy: float
    clip_low: float
    clip_high: float
    clip_delta: float
    applied: list[Applied]

    @property
    def norms(self) -> list[float]:
        """Gradient norms before the clip, of the applied steps."""
        return [one.gradient_norm for one in self.applied if one.applied]

    @property
    def skipped(self) -> int:
        return sum(not one.applied for one in self.applied)


LogProbs = list[list[Float[Tensor, " completion"]]]
"""One tensor a micro-batch, in the order of the plan."""


@torch.no_grad()
def plan_logprobs(model: Any, plan: StepPlan, beat: Beat) -> LogProbs:
    """Log-probabilities of every micro-batch under `model`, without gradients."""
    found: LogProbs = []
    for batch in plan.optimizer_batches:
        found.append([])
        for packed in batch.micro_batches:
            found[-1].append(token_logprobs(model, packed)[0])
            beat()
    return found


def mismatch(plan: StepPlan, old: LogProbs) -> float:
    """Mean over completion tokens of the worker's log-probability minus the recomputed one (nats)."""
    gaps = [
        (packed.worker_logprobs - recomputed).double().sum()
        for batch, logprobs in zip(plan.optimizer_batches, old, strict=True)
        for packed, recomputed in zip(batch.micro_batches, logprobs, strict=True)
    ]
    return float(torch.stack(gaps).sum()) / sum(batch.token_count for batch in plan.optimizer_batches)


def train(
    policy: Any, optimizer: Optimizer, plan: StepPlan, old: LogProbs, reference: LogProbs, recipe: Recipe, beat: Beat
) -> Updates:
    """Make the optimizer steps of the plan. An update whose gradient norm is not finite is left out and counted."""
    weights = LossWeights(recipe.clip_epsilon, recipe.clip_delta, recipe.kl_coefficient, recipe.entropy_coefficient)
    sums: list[LossSums] = []
    applied: list[Applied] = []
    for batch, old_logprobs, reference_logprobs in zip(plan.optimizer_batches, old, reference, strict=True):
        sums.extend(accumulate(policy, batch, old_logprobs, reference_logprobs, weights, beat))
        applied.append(optimizer.step())
    tokens = sum(batch.token_count for batch in plan.optimizer_batches)
    return Updates(
        loss=math.fsum(part.loss for part in sums) / tokens,
        kl=math.fsum(part.kl for part in sums) / tokens,
        entropy=math.fsum(part.entropy for part in sums) / tokens,
        clip_low=sum(part.clip_low for part in sums) / tokens,
        clip_high=sum(part.clip_high for part in sums) / tokens,
        clip_delta=sum(part.clip_delta for part in sums) / tokens,
        applied=applied,
    )


def accumulate(
    policy: Any,
    batch: OptimizerBatch,
    old: list[Float[Tensor, " completion"]],
    reference: list[Float[Tensor, " completion"]],
    weights: LossWeights,
    beat: Beat,
) -> list[LossSums]:
    """Add the gradient of an optimizer batch's loss to the policy's parameters, one micro-batch at a time."""
    sums = []
    for packed, old_logprobs, reference_logprobs in zip(batch.micro_batches, old, reference, strict=True):
        loss, part = _micro_loss(policy, packed, old_logprobs, reference_logprobs, weights, batch.token_count)
        loss.backward()
        sums.append(part)
        beat()
    return sums


def _micro_loss(
    policy: Any,
    packed: MicroBatch,
    old: Float[Tensor, " completion"],
    reference: Float[Tensor, " completion"],
    weights: LossWeights,
    token_count: int,
) -> tuple[Float[Tensor, ""], LossSums]:
    logprobs, entropy = token_logprobs(policy, packed)
    inputs = LossInputs(
        logprobs=logprobs,
        entropy=entropy,
        old_logprobs=old,
        reference_logprobs=reference,
        advantages=packed.advantages,
    )
    return grpo_loss(inputs, weights, token_count)
