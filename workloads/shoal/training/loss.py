"""The GRPO loss with two-sided clipping, a KL penalty and an entropy bonus (paper section 3.4).

In: log-probabilities of completion tokens under three policies, and advantages. Out: the loss to differentiate and sums for the
metrics. Per token, with ratio r = exp(logp - logp_old):

    policy  = -min( min(r, delta) * A, clip(r, 1 - epsilon, 1 + epsilon) * A )
    kl      = exp(logp_ref - logp) - (logp_ref - logp) - 1        (k3, Schulman 2020: unbiased, never negative)
    loss    = sum(policy + kl_coefficient * kl - entropy_coefficient * entropy) / tokens of the optimizer batch

`min(r, delta)` bounds the side that plain clipping leaves open: a negative advantage with a large ratio. The divisor is
the count of completion tokens of the whole optimizer batch, over all micro-batches and ranks, so regrouping changes nothing.
Called by `update`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """Natural logarithms at each row's sampling temperature, float32 (or float64), one entry a completion token.

    Gradients flow through `logprobs` and `entropy` only; the others are constants.
    """

    logprobs: Float[Tensor, " tokens"]
    entropy: Float[Tensor, " tokens"]
    old_logprobs: Float[Tensor, " tokens"]
    reference_logprobs: Float[Tensor, " tokens"]
    advantages: Float[Tensor, " tokens"]


@dataclass(frozen=True)
class LossWeights:
    """The recipe's numbers; `delta` > 1 + `epsilon`."""

    epsilon: float
    delta: float
    kl: float
    entropy: float

    def __post_init__(self) -> None:
        if self.delta <= 1 + self.epsilon:
            raise ValueError(
                f"clip_delta is {self.delta}; allowed: more than 1 + clip_epsilon = {1 + self.epsilon},"
                " or the bound would cut before the clip does"
            )


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of one micro-batch, detached; divide by the token count of all to report."""

    loss: float
    kl: float
    entropy: float
    clip_low: int
    clip_high: int
    clip_delta: int


def grpo_loss(inputs: LossInputs, weights: LossWeights, token_count: int) -> tuple[Float[Tensor, ""], LossSums]:
    """The share of the optimizer batch's loss that these tokens make, and sums for the metrics.

    `token_count` is the number of completion tokens of the whole optimizer batch. Raises ValueError when it is not
    positive.
    """
    if token_count < 1:
        raise ValueError(f"the optimizer batch has {token_count} completion tokens; allowed: 1 or more")
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
    advantages = inputs.advantages
    clipped = ratio.clamp(1 - weights.epsilon, 1 + weights.epsilon)
    policy = -torch.minimum(ratio.clamp(max=weights.delta) * advantages, clipped * advantages)
    behind = inputs.reference_logprobs - inputs.logprobs
    kl = torch.exp(behind) - behind - 1
    per_token = policy + weights.kl * kl - weights.entropy * inputs.entropy
    loss = per_token.sum() / token_count
    worse, better = advantages < 0, advantages > 0
    sums = LossSums(
        loss=float(per_token.detach().sum()),
        kl=float(kl.detach().sum()),
        entropy=float(inputs.entropy.detach().sum()),
        clip_low=int((worse & (ratio < 1 - weights.epsilon)).sum()),
        clip_high=int((better & (ratio > 1 + weights.epsilon)).sum()),
        clip_delta=int((worse & (ratio > weights.delta)).sum()),
    )
    return loss, sums
