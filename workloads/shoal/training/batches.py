"""From groups of samples to the tensors of optimizer steps: advantages, shuffling, splitting, packing.

In: the groups of one step. Out: for each optimizer step its micro-batches, with the count of completion tokens that the loss is
divided by. The order of samples is drawn from (seed, step) alone, so a resumed step is the same step. Pure; called by `loop`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoal.contracts.recipe import Recipe
from shoal.training.advantages import group_advantages
from shoal.training.packing import density, pack
from shoal.training.rollouts import Group, Sample


@dataclass(frozen=True)
class MicroBatch:
    """Whole samples laid end to end. `positions` start again at 0 with each sample.

    The flat arrays have one entry for each token that the model itself sampled (tool output is context only):
    `predicted_from` is where in the pack the token was predicted (the position before it), `targets` its id.
    """

    tokens: Int[Tensor, " pack"]
    positions: Int[Tensor, " pack"]
    predicted_from: Int[Tensor, " completion"]
    targets: Int[Tensor, " completion"]
    temperatures: Float[Tensor, " completion"]
    advantages: Float[Tensor, " completion"]
    worker_logprobs: Float[Tensor, " completion"]


@dataclass(frozen=True)
class OptimizerBatch:
    """What one optimizer step trains on; `token_count` is the divisor of its loss."""

    micro_batches: list[MicroBatch]
    token_count: int


@dataclass(frozen=True)
class StepPlan:
    """All optimizer batches of a step; `packing_density` is the share of pack capacity that holds tokens."""

    optimizer_batches: list[OptimizerBatch]
    packing_density: float


def plan_step(groups: Sequence[Group], recipe: Recipe, *, seed: int, step: int) -> StepPlan:
    """Advantages within groups, samples shuffled over groups, cut into `optimizer_steps` parts, each packed.

    Raises ValueError when the step has fewer samples than optimizer steps.
    """
    scored: list[tuple[Sample, float]] = []
    for group in groups:
        rewards = np.array([sample.reward for sample in group.samples])
        advantages = group_advantages(rewards, normalize=recipe.normalize_advantages)
        scored.extend(zip(group.samples, advantages.tolist(), strict=True))
    if len(scored) < recipe.optimizer_steps:
        raise ValueError(
            f"step {step} has {len(scored)} samples for {recipe.optimizer_steps} optimizer steps; lower optimizerSteps"
        )
    order = np.random.default_rng([seed, step]).permutation(len(scored))
    capacity = recipe.pack_length or recipe.max_sequence_length
    batches, densities = [], []
    for part in np.array_split(order, recipe.optimizer_steps):
        members = [scored[index] for index in part]
        lengths = [len(sample.tokens) for sample, _ in members]
        bins = pack(lengths, capacity)
        packs = [micro_batch([members[index] for index in indices]) for indices in bins]
        # A pack of tool output only has nothing to learn from, and no gradient.
        useful = [packed for packed in packs if len(packed.targets)]
        batches.append(OptimizerBatch(useful, sum(len(packed.targets) for packed in useful)))
        densities.append(density(lengths, bins, capacity))
    return StepPlan(batches, float(np.mean(densities)))


def micro_batch(members: Sequence[tuple[Sample, float]]) -> MicroBatch:
    """Lay samples, each with its advantage, end to end."""
    starts = np.cumsum([0, *(len(sample.tokens) for sample, _ in members)])
    places, repeats = [], []
    for (sample, _), start in zip(members, starts, strict=False):
        kept = np.flatnonzero(sample.mask)
        places.append(start + sample.prompt_length + kept)
        repeats.append(len(kept))
    tokens = np.concatenate([sample.tokens for sample, _ in members])
    at = np.concatenate(places)
    return MicroBatch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(np.concatenate([np.arange(len(sample.tokens)) for sample, _ in members])),
        predicted_from=torch.from_numpy(at - 1),
        targets=torch.from_numpy(tokens[at]),
        temperatures=_spread([sample.temperature for sample, _ in members], repeats),
        advantages=_spread([advantage for _, advantage in members], repeats),
        worker_logprobs=torch.from_numpy(np.concatenate([sample.logprobs[sample.mask] for sample, _ in members])),
    )


def _spread(values: Sequence[float], repeats: Sequence[int]) -> Float[Tensor, " completion"]:
    """One value a sample, repeated for each of its tokens."""
    return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), repeats))
