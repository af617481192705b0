"""The loss of a micro-batch's tokens: an objective's surrogate, a KL penalty and an entropy bonus (paper section 3.4).

In: log-probabilities of completion tokens under the policies that take part, and advantages. Out: a loss per token to differentiate, and sums for
the metrics. Per token, with w = min(exp(logp_old - logp_behaviour), cap), or 1 where no importance weight is asked for:

    kl      = exp(logp_ref - logp) - (logp_ref - logp) - 1        (k3, Schulman 2020: unbiased, never negative; 0 without a reference)
    loss    = sum(w * surrogate + kl_coefficient * kl - entropy_coefficient * entropy) / divisor of the optimizer batch

The surrogate is the objective's (`objectives`). The divisor is the count of completion tokens of the whole optimizer batch, over all
micro-batches and ranks (or a constant, for Dr. GRPO), so regrouping changes nothing. Called by `logprobs`, tile by tile, for `update`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from shoal.contracts.recipe import Recipe


@dataclass(frozen=True)
class LossInputs:
    """Natural logarithms at each row's sampling temperature, float32 (or float64), one entry a completion token.

    Gradients flow through `logprobs` and `entropy` only; the others are constants. `behaviour_logprobs` are recomputed here with the
    weights of the version that sampled the row, never a worker's claim; None when nothing needs them. `reference_logprobs` are None where no
    reference model was asked.
    """

    logprobs: Float[Tensor, " tokens"]
    entropy: Float[Tensor, " tokens"]
    old_logprobs: Float[Tensor, " tokens"]
    reference_logprobs: Float[Tensor, " tokens"] | None
    advantages: Float[Tensor, " tokens"]
    behaviour_logprobs: Float[Tensor, " tokens"] | None = None


@dataclass(frozen=True)
class LossWeights:
    """The recipe's numbers. `delta`, `epsilon_high` and `importance_cap` are None where the recipe leaves them out."""

    epsilon: float
    delta: float | None
    kl: float
    entropy: float
    epsilon_high: float | None = None
    importance_cap: float | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> "LossWeights":
        return cls(
            epsilon=recipe.loss.clip_epsilon,
            delta=recipe.loss.upper_bound,
            kl=recipe.kl_coefficient,
            entropy=recipe.entropy_coefficient,
            epsilon_high=recipe.loss.clip_epsilon_high,
            importance_cap=recipe.loss.importance_cap,
        )

    @property
    def high(self) -> float:
        """Upper half-width of the ratio clip."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


@dataclass(frozen=True)
class Surrogate:
    """An objective's policy loss per token, and which tokens were cut: below, above, and at delta."""

    loss: Float[Tensor, " tokens"]
    cut_low: Bool[Tensor, " tokens"]
    cut_high: Bool[Tensor, " tokens"]
    cut_delta: Bool[Tensor, " tokens"]


@dataclass(frozen=True)
class Objective:
    """The functions in which objectives differ.

    `advantages`: reward less the group's mean, or less the mean of the others (leave-one-out). `divisor`: completion tokens of the optimizer
    batch, or rows times the longest completion allowed. `needs_behaviour`: importance weights are part of the objective itself, capped or not.
    """

    surrogate: Callable[[LossInputs, LossWeights], Surrogate]
    advantages: Literal["group_mean", "leave_one_out"] = "group_mean"
    divisor: Literal["tokens", "longest_completions"] = "tokens"
    needs_behaviour: bool = False

    def check(self, weights: LossWeights) -> None:
        """Raises ValueError when the recipe's numbers do not go together under this objective."""
        if weights.delta is not None and weights.delta <= 1 + weights.high:
            raise ValueError(
                f"clip_delta is {weights.delta}; allowed: more than 1 + clip_epsilon = {1 + weights.high},"
                " or the bound would cut before the clip does"
            )

    def weighs(self, weights: LossWeights) -> bool:
        """Whether tokens carry an importance weight, so that behaviour log-probabilities must be recomputed."""
        return self.needs_behaviour or weights.importance_cap is not None


@dataclass(frozen=True)
class LossSums:
    """Sums over tokens; divide by their count to report. `capped`: importance weights cut at the cap."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    clip_delta: float = 0.0
    capped: float = 0.0


SUMS = tuple(field.name for field in fields(LossSums))


def token_losses(
    inputs: LossInputs, objective: Objective, weights: LossWeights
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " sums"]]:
    """Loss of each token, undivided and differentiable, and the `SUMS` over them (float64, detached).

    Raises ValueError when behaviour or reference log-probabilities are needed and missing.
    """
    surrogate = objective.surrogate(inputs, weights)
    policy, capped = surrogate.loss, torch.zeros_like(surrogate.cut_low)
    if objective.weighs(weights):
        weight, capped = _importance(inputs, weights)
        policy = weight * policy
    kl = _divergence(inputs, weights)
    loss = policy + weights.kl * kl - weights.entropy * inputs.entropy
    summed = (
        loss.detach(),
        kl.detach(),
        inputs.entropy.detach(),
        surrogate.cut_low,
        surrogate.cut_high,
        surrogate.cut_delta,
        capped,
    )
    return loss, torch.stack([values.double().sum() for values in summed])


def _divergence(inputs: LossInputs, weights: LossWeights) -> Float[Tensor, " tokens"]:
    """The KL estimate of each token (nats); zeros where nothing was asked of a reference model."""
    if inputs.reference_logprobs is None:
        if weights.kl:
            raise ValueError(
                f"the KL coefficient is {weights.kl:g}, so the loss needs the reference's log-probabilities"
            )
        return torch.zeros_like(inputs.logprobs)
    behind = inputs.reference_logprobs - inputs.logprobs
    return torch.exp(behind) - behind - 1


def _importance(inputs: LossInputs, weights: LossWeights) -> tuple[Float[Tensor, " tokens"], Bool[Tensor, " tokens"]]:
    """How much likelier the recomputed old policy made each token than the one that sampled it, and where that was capped."""
    if inputs.behaviour_logprobs is None:
        raise ValueError("importance weights need behaviour log-probabilities, recomputed with each row's version")
    weight = torch.exp(inputs.old_logprobs - inputs.behaviour_logprobs)
    if weights.importance_cap is None:
        return weight, torch.zeros_like(weight, dtype=torch.bool)
    return weight.clamp(max=weights.importance_cap), weight > weights.importance_cap


class MicroLoss:
    """The loss of one micro-batch, asked for tile by tile: `logprobs.head_loss` calls it with what it has just computed.

    The constants are full-length; `sums` has the `SUMS` of all tiles so far. `old` None: the policy itself is the old one, so that ratios are 1.
    Afterwards `old` has its log-probabilities.
    """

    def __init__(
        self,
        *,
        old: Float[Tensor, " completion"] | None,
        reference: Float[Tensor, " completion"] | None,
        advantages: Float[Tensor, " completion"],
        behaviour: Float[Tensor, " completion"] | None,
        objective: Objective,
        weights: LossWeights,
        divisor: float,
    ) -> None:
        if divisor <= 0:
            raise ValueError(
                f"the divisor of the optimizer batch is {divisor}; it has no completion tokens to train on"
            )
        self.old, self._own = old, old is None
        self._reference, self._advantages, self._behaviour = reference, advantages, behaviour
        self._objective, self._weights, self._divisor = objective, weights, divisor
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=advantages.device)

    def __call__(
        self, here: slice, logprobs: Float[Tensor, " tile"], entropy: Float[Tensor, " tile"]
    ) -> Float[Tensor, ""]:
        """The share of the optimizer batch's loss that the tokens `here` make."""
        if self.old is None:
            self.old = logprobs.new_empty(len(self._advantages))
        if self._own:
            self.old[here] = logprobs.detach()
        inputs = LossInputs(
            logprobs=logprobs,
            entropy=entropy,
            old_logprobs=self.old[here],
            reference_logprobs=None if self._reference is None else self._reference[here],
            advantages=self._advantages[here],
            behaviour_logprobs=None if self._behaviour is None else self._behaviour[here],
        )
        per_token, sums = token_losses(inputs, self._objective, self._weights)
        self.sums += sums
        return per_token.sum() / self._divisor
