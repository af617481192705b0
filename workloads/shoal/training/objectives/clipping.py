"""The clipped surrogate that the objectives have in common (PPO, arXiv:1707.06347, equation 7). Pure."""

import torch
from jaxtyping import Float
from torch import Tensor

from shoal.training.loss import LossInputs, LossWeights, Surrogate


def clipped_surrogate(inputs: LossInputs, weights: LossWeights, *, delta: float | None = None) -> Surrogate:
    """`-min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)` per token, with r = exp(logp - logp_old).

    With `delta`, r in the first term is bounded by it: that closes the side which plain clipping leaves open.
    """
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
    low, high = 1 - weights.epsilon, 1 + weights.high
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    advantages = inputs.advantages
    worse, better = advantages < 0, advantages > 0
    return Surrogate(
        loss=-torch.minimum(bounded * advantages, ratio.clamp(low, high) * advantages),
        cut_low=worse & (ratio < low),
        cut_high=better & (ratio > high),
        cut_delta=_none(ratio) if delta is None else worse & (ratio > delta),
    )


def _none(ratio: Float[Tensor, " tokens"]) -> Tensor:
    return torch.zeros_like(ratio, dtype=torch.bool)
