"""The objectives that a recipe can name. Pure; called by `batches` (advantages, divisor) and `update` (loss).

Most clip the ratio r = exp(logp - logp_old) as PPO does (arXiv:1707.06347, equation 7); the table says in what each differs.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from shoal.contracts.recipe import OverlongShaping, Recipe
from shoal.training.custom_objective import load_objective
from shoal.training.loss import LossInputs, LossWeights, Objective, SourceLoss, Surrogate


def clipped_surrogate(inputs: LossInputs, weights: LossWeights, *, delta: float | None = None) -> Surrogate:
    """`-min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)` per token.

    With `delta`, r in the first term is bounded by it: that closes the side which plain clipping leaves open.
    """
    return _clipped(torch.exp(inputs.logprobs - inputs.old_logprobs), inputs.advantages, weights, delta)


def _clipped(
    ratio: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"], weights: LossWeights, delta: float | None
) -> Surrogate:
    low, high = 1 - weights.epsilon, 1 + weights.high
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    worse, better = advantages < 0, advantages > 0
    return Surrogate(
        loss=-torch.minimum(bounded * advantages, ratio.clamp(low, high) * advantages),
        cut_low=worse & (ratio < low),
        cut_high=better & (ratio > high),
        cut_delta=torch.zeros_like(ratio, dtype=torch.bool) if delta is None else worse & (ratio > delta),
    )


def two_sided_surrogate(inputs: LossInputs, weights: LossWeights) -> Surrogate:
    """The loss of INTELLECT-2 per token: a bad token that became much likelier has a bound."""
    return clipped_surrogate(inputs, weights, delta=weights.delta)


def sequence_surrogate(inputs: LossInputs, weights: LossWeights) -> Surrogate:
    """`-min(s * A, clip(s) * A)` with s the completion's ratio, at each of its tokens (GSPO, equations 5 and 7, as its equations 13 and 14).

    The value is s; the gradient by a token's log-probability is s as well. Divided by the completion's tokens, that is the gradient of
    s = exp(mean of logp - logp_old). So a tile needs no other token's gradient, only the mean, which the head has before its first tile.
    """
    if inputs.completion_ratios is None:
        raise ValueError(
            "the ratio of whole completions is missing: MicroLoss.look must see all log-probabilities first"
        )
    ratio = inputs.completion_ratios * torch.exp(inputs.logprobs - inputs.logprobs.detach())
    return _clipped(ratio, inputs.advantages, weights, None)


def capped_weight_surrogate(inputs: LossInputs, weights: LossWeights) -> Surrogate:
    """`-stop(clip(r, 1 - epsilon, 1 + epsilon_high)) * A * logp` per token (CISPO, MiniMax-M1, equations 4 and 5)."""
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs).detach()
    low, high = 1 - weights.epsilon, 1 + weights.high
    return Surrogate(
        loss=-ratio.clamp(low, high) * inputs.advantages * inputs.logprobs,
        cut_low=ratio < low,
        cut_high=ratio > high,
        cut_delta=torch.zeros_like(ratio, dtype=torch.bool),
    )


def divergence_surrogate(inputs: LossInputs, weights: LossWeights) -> Surrogate:
    """`-M * r * A` per token, with r = p / p_behaviour (DPPO, equations 11 to 14).

    M is 0 where the token's divergence is above its bound and its advantage would move it further away. The divergence is that between
    (p, 1 - p) and (p_behaviour, 1 - p_behaviour): total variation |p - q|, or KL(q, p) in nats.
    """
    if inputs.behaviour_logprobs is None:
        raise ValueError("DPPO's divergence needs behaviour log-probabilities, recomputed with each row's version")
    logp, logq = inputs.logprobs.detach(), inputs.behaviour_logprobs
    p, q = logp.exp(), logq.exp()
    if weights.kl_divergence:
        tiny = torch.finfo(p.dtype).tiny
        others = torch.log((1 - q).clamp(min=tiny)) - torch.log((1 - p).clamp(min=tiny))
        divergence = q * (logq - logp) + (1 - q) * others
    else:
        divergence = (p - q).abs()
    far = divergence > weights.max_divergence
    worse, better = far & (inputs.advantages < 0) & (p < q), far & (inputs.advantages > 0) & (p > q)
    ratio = torch.exp(inputs.logprobs - logq)
    return Surrogate(
        loss=-torch.where(worse | better, 0.0, ratio * inputs.advantages),
        cut_low=worse,
        cut_high=better,
        cut_delta=torch.zeros_like(worse),
    )


OBJECTIVES: dict[str, Objective] = {
    # GRPO with two-sided clipping, the recipe of INTELLECT-2 (paper section 3.4) and the default.
    # One-sided clipping has no bound where A < 0 and r is large, and gradients spike; `min(r, delta)` bounds it.
    "two_sided_grpo": Objective(two_sided_surrogate),
    # GRPO as first published (DeepSeekMath, arXiv:2402.03300, equation 3), token-level, with group advantages.
    "one_sided_grpo": Objective(clipped_surrogate),
    # Dr. GRPO ("GRPO done right", arXiv:2503.20783, section 3.2): no division by the deviation, and none by what was sampled.
    # The sum is divided by rows times the longest completion allowed, a constant of the run.
    # So neither long wrong answers nor easy and hard prompts weigh differently.
    "dr_grpo": Objective(clipped_surrogate, divisor="longest_completions"),
    # DAPO (arXiv:2503.14476): the upper half-width is `clipEpsilonHigh`, 0.28 in that paper beside 0.2. Dynamic sampling is the
    # run's online filter; `overlong_penalty` is taken from rewards before advantages when the recipe has `overlongShaping`.
    "dapo": Objective(clipped_surrogate),
    # REINFORCE leave-one-out (arXiv:2402.14740, section 3.2): a completion's baseline is the mean reward of its siblings.
    # The first update after sampling has the gradient of REINFORCE, `-A * grad logp`; ratio and clip keep later updates in bounds.
    # It is per token: the product of a long sequence's ratios leaves any clip at once.
    "rloo": Objective(clipped_surrogate, advantages="leave_one_out"),
    # Decoupled PPO (Hilton, Cobbe, Schulman, arXiv:2110.00641, section 3): the surrogate times p_proximal / p_behaviour.
    # The proximal policy has the weights at the start of the step; the behaviour policy is the version that sampled the row.
    # `loss` applies that weight, capped by `importanceCap`, as for every objective that has one.
    "decoupled_ppo": Objective(clipped_surrogate, needs_behaviour=True),
    # GSPO (arXiv:2507.18071): clip and weight belong to the whole completion, whose mean it is that is averaged.
    "gspo": Objective(sequence_surrogate, divisor="completions", whole_completions=True),
    # CISPO (arXiv:2506.13585): clipping bounds the weight and takes no token's gradient away.
    "cispo": Objective(capped_weight_surrogate),
    # DPPO (arXiv:2602.04879): rare tokens may move by large ratios, likely ones by little. Ratio and mask are against the policy that sampled.
    "dppo": Objective(divergence_surrogate, from_behaviour=True),
}


def overlong_penalty(length: int, limit: int, shaping: OverlongShaping) -> float:
    """The penalty for a completion of `length` tokens when `limit` are allowed (DAPO's equation 13; both in tokens).

    None until `buffer_tokens` before the limit, then linear up to the whole penalty at the limit.
    """
    over = length - (limit - shaping.buffer_tokens)
    return shaping.penalty * min(1.0, max(0.0, over / shaping.buffer_tokens))


def objective_of(recipe: Recipe) -> Objective:
    """The recipe's objective. Raises ValueError when its numbers do not go together at some step, `BadObjective` for one of the run's own."""
    own = recipe.algorithm.custom
    objective = OBJECTIVES[recipe.objective] if own is None else load_objective(own.path, own.sha256)
    for step in recipe.scheduled_steps:
        objective.check(LossWeights.of(recipe, step))
    if recipe.credit == "Turn" and objective.whole_completions:
        raise ValueError(
            f"recipe.credit: Turn does not go with {recipe.objective}, whose ratio is of a whole completion"
        )
    return objective


def source_losses(recipe: Recipe, step: int = 0) -> list[SourceLoss]:
    """How the rows of each source are learnt from: those of others first, then `recipe.sources` in their order. Raises as `objective_of`."""
    found = [SourceLoss("", objective_of(recipe), LossWeights.of(recipe, step))]
    for each in recipe.sources or []:
        own = recipe.of_source(each.name)
        found.append(SourceLoss(each.name, objective_of(own), LossWeights.of(own, step), each.loss_weight))
    return found


def needs_behaviour(recipe: Recipe) -> bool:
    """Whether log-probabilities under the versions that sampled the rows must be recomputed."""
    correction = recipe.mismatch_correction
    recomputed = correction is not None and correction.probabilities == "Recomputed"
    return recomputed or any(
        each.objective.from_behaviour or each.objective.weighs(each.weights) for each in source_losses(recipe)
    )
