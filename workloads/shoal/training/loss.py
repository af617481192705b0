"""The loss of a micro-batch's tokens: an objective's surrogate, a KL penalty and an entropy bonus (paper section 3.4).

In: log-probabilities of completion tokens under the policies that take part, and advantages. Out: a loss per token to differentiate, and sums for
the metrics. Per token, with w = min(exp(logp_old - logp_behaviour), cap), or 1 where no importance weight is asked for:

    kl      = exp(logp_ref - logp) - (logp_ref - logp) - 1        (k3, Schulman 2020: unbiased, never negative; 0 without a reference)
    loss    = sum(w * c * surrogate + kl_coefficient * kl - entropy_coefficient * entropy) / divisor of the optimizer batch

The surrogate is the objective's (`objectives`), c the mismatch correction (`corrections`; 1 without one). The divisor is the count of completion
tokens of the whole optimizer batch, over all micro-batches and ranks, so regrouping changes nothing. It is a constant for Dr. GRPO. For GSPO it is
the count of completions, and a token's loss is divided by the tokens of its own first. Called by `logprobs`, tile by tile, for `update`.

Sources of a mixture may have objectives of their own. A row of source s then adds, with its factor f:

    f * sum(loss of its tokens by the objective of s) / divisor of the objective of s

That divisor is over all rows of the optimizer batch. So a row adds f times what it would add if all rows had its objective.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shoal.contracts.algorithm import Dppo
from shoal.contracts.recipe import Recipe
from shoal.contracts.schedules import Schedules, value_at
from shoal.training.completions import Packed
from shoal.training.corrections import Corrected, Correcting


@dataclass(frozen=True)
class LossInputs:
    """Natural logarithms at each row's sampling temperature, float32 (or float64), one entry a completion token.

    Gradients flow through `logprobs` and `entropy` only; the others are constants. `behaviour_logprobs` are recomputed here with the
    weights of the version that sampled the row, never a worker's claim; None when nothing needs them. `reference_logprobs` are None where no
    reference model was asked. `correction` is the recipe's. `completion_ratios` has exp(mean of logp - logp_old over the token's completion), for
    objectives of `whole_completions`.
    """

    logprobs: Float[Tensor, " tokens"]
    entropy: Float[Tensor, " tokens"]
    old_logprobs: Float[Tensor, " tokens"]
    reference_logprobs: Float[Tensor, " tokens"] | None
    advantages: Float[Tensor, " tokens"]
    behaviour_logprobs: Float[Tensor, " tokens"] | None = None
    completion_ratios: Float[Tensor, " tokens"] | None = None
    correction: Corrected | None = None

    def at(self, chosen: Int[Tensor, " chosen"]) -> "LossInputs":
        """Those of some tokens, by their places."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return LossInputs(
            **{
                name: value.part(chosen) if isinstance(value, Corrected) else None if value is None else value[chosen]
                for name, value in given.items()
            }
        )


@dataclass(frozen=True)
class LossWeights:
    """The recipe's numbers. `delta`, `epsilon_high` and `importance_cap` are None where the recipe leaves them out.

    `max_divergence` is DPPO's, of total variation or, with `kl_divergence`, in nats.
    """

    epsilon: float
    delta: float | None
    kl: float
    entropy: float
    epsilon_high: float | None = None
    importance_cap: float | None = None
    max_divergence: float = math.inf
    kl_divergence: bool = False

    @classmethod
    def of(cls, recipe: Recipe, step: int = 0) -> "LossWeights":
        """Those of a step of the run, by the recipe's schedules."""
        plan = recipe.schedules or Schedules()
        kl, entropy = value_at(plan.kl_coefficient, step, recipe.kl_coefficient), recipe.entropy_coefficient
        loss = recipe.loss
        if isinstance(loss, Dppo):
            return cls(0.0, None, kl, entropy, max_divergence=loss.bound, kl_divergence=loss.divergence == "KL")
        high = loss.clip_epsilon_high
        return cls(
            epsilon=value_at(plan.clip_epsilon, step, loss.clip_epsilon),
            delta=loss.upper_bound,
            kl=kl,
            entropy=entropy,
            epsilon_high=value_at(plan.clip_epsilon_high, step, high or 0.0)
            if plan.clip_epsilon_high or high
            else None,
            importance_cap=loss.importance_cap,
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
    batch, or rows times the longest completion allowed, or completions, each token first divided by its completion's tokens. `needs_behaviour`:
    importance weights are part of the objective itself, capped or not. `from_behaviour`: the surrogate asks for behaviour log-probabilities.
    `whole_completions`: it asks for `completion_ratios`.
    """

    surrogate: Callable[[LossInputs, LossWeights], Surrogate]
    advantages: Literal["group_mean", "leave_one_out"] = "group_mean"
    divisor: Literal["tokens", "longest_completions", "completions"] = "tokens"
    needs_behaviour: bool = False
    from_behaviour: bool = False
    whole_completions: bool = False

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
    """Sums over tokens; divide by their count to report. `capped`: importance weights cut at the cap.

    The last three are the mismatch correction's: `completions_masked` is a count of completions.
    """

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    clip_delta: float = 0.0
    capped: float = 0.0
    truncated: float = 0.0
    masked: float = 0.0
    completions_masked: float = 0.0


SUMS = tuple(field.name for field in fields(LossSums))


@dataclass(frozen=True)
class SourceLoss:
    """How rows of one source are learnt from. The first has the name "": rows of sources that the recipe says nothing of."""

    name: str
    objective: Objective
    weights: LossWeights
    factor: float = 1.0


@dataclass
class SourceLosses:
    """Of a recipe with `sources`: each one's loss, and the `SUMS` over its tokens so far (float64), unweighted."""

    each: Sequence[SourceLoss]
    sums: Float[Tensor, "sources sums"]


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
    none = torch.zeros_like(policy)
    corrected = inputs.correction or Corrected(torch.ones_like(none), none, none, none)
    policy = corrected.weights * policy
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
        corrected.truncated,
        corrected.masked,
        corrected.completions_masked,
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

    Tensors are full-length; `sums` has the `SUMS` of all tiles so far. `old` None: the policy itself is the old one, so that ratios are 1;
    afterwards `old` has its log-probabilities. Where `needs_look`, `look` must be called first. Objectives of whole completions need `completions`.

    With `sources` a token's loss is its source's: `owners` says whose it is, `divisors` has one number for each, and `objective`, `weights` and
    `divisor` are unused. A tile is computed source by source, on vectors of its tokens: the products with the head's weight stay one. `owners` lies
    in host memory, so that the host never waits for the device: it sends each source's places there, 8 bytes a token.
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
        completions: Packed | None = None,
        correction: Correcting | None = None,
        sources: SourceLosses | None = None,
        owners: Int[Tensor, " completion"] | None = None,
        divisors: Sequence[float] = (),
    ) -> None:
        if divisor <= 0:
            raise ValueError(
                f"the divisor of the optimizer batch is {divisor}; it has no completion tokens to train on"
            )
        self.old, self._own = old, old is None
        self._reference, self._advantages, self._behaviour = reference, advantages, behaviour
        self._parts = [SourceLoss("", objective, weights)] if sources is None else sources.each
        self._divisors = [divisor] if sources is None else divisors
        self._sources, self._owners = sources, owners
        self._completions, self._correction = completions, correction
        self._corrected = None if correction is None or old is None else correction.all(old)
        unknown = correction is not None and old is None and correction.whole_completions
        self._whole_completions = any(part.objective.whole_completions for part in self._parts)
        self.needs_look = self._whole_completions or unknown
        self._ratios: Float[Tensor, " completion"] | None = None
        self._lengths: Float[Tensor, " completion"] | None = None
        if any(part.objective.divisor == "completions" for part in self._parts):
            assert completions is not None  # the trainer gives them to every micro-batch
            self._lengths = completions.counts()[completions.owners].to(advantages.dtype)
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=advantages.device)

    def look(self, logprobs: Float[Tensor, " completion"]) -> None:
        """Fix what belongs to whole completions, from the log-probabilities of all tokens: their ratios, and the correction."""
        if self.old is None:
            self.old = logprobs.detach().clone()
        if self._whole_completions:
            assert self._completions is not None
            self._ratios = torch.exp(self._completions.spread_means(logprobs.detach() - self.old))
        if self._correction is not None and self._corrected is None:
            self._corrected = self._correction.all(self.old)

    def __call__(
        self, here: slice, logprobs: Float[Tensor, " tile"], entropy: Float[Tensor, " tile"]
    ) -> Float[Tensor, ""]:
        """The share of the optimizer batch's loss that the tokens `here` make."""
        if self.old is None:
            self.old = logprobs.new_empty(len(self._advantages))
        if self._own:
            self.old[here] = logprobs.detach()
        corrected = None if self._corrected is None else self._corrected.part(here)
        if self._correction is not None and corrected is None:
            corrected = self._correction.tile(self.old[here], here)
        inputs = LossInputs(
            logprobs=logprobs,
            entropy=entropy,
            old_logprobs=self.old[here],
            reference_logprobs=None if self._reference is None else self._reference[here],
            advantages=self._advantages[here],
            behaviour_logprobs=None if self._behaviour is None else self._behaviour[here],
            completion_ratios=None if self._ratios is None else self._ratios[here],
            correction=corrected,
        )
        lengths = None if self._lengths is None else self._lengths[here]
        if self._sources is None:
            return self._part(0, inputs, lengths)
        assert self._owners is not None  # the trainer gives them to every micro-batch
        owners, loss = self._owners[here], logprobs.new_zeros(())
        for number in owners.unique().tolist():
            chosen = (owners == number).nonzero()[:, 0].to(logprobs.device, non_blocking=True)
            own_lengths = None if lengths is None else lengths[chosen]
            loss = loss + self._parts[number].factor * self._part(number, inputs.at(chosen), own_lengths)
        return loss

    def _part(self, number: int, inputs: LossInputs, lengths: Float[Tensor, " tokens"] | None) -> Float[Tensor, ""]:
        """The share of the tokens of one source, without its factor."""
        part = self._parts[number]
        per_token, sums = token_losses(inputs, part.objective, part.weights)
        self.sums += sums
        if self._sources is not None:
            self._sources.sums[number] += sums
        if part.objective.divisor == "completions":
            assert lengths is not None
            per_token = per_token / lengths
        return per_token.sum() / self._divisors[number]
