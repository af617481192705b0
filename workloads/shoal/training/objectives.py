"""The objectives that a recipe can name. Pure; called by `batches` (advantages, divisor) and `update` (loss).

All of them clip the ratio r = exp(logp - logp_old) as PPO does (arXiv:1707.06347, equation 7); the table says in what else each differs.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from shoal.contracts.recipe import OverlongShaping, Recipe
from shoal.training.loss import LossInputs, LossWeights, Objective, Surrogate


def clipped_surrogate(inputs: LossInputs, weights: LossWeights, *, delta: float | None = None) -> Surrogate:
    """`-min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A)` per token.

    With `delta`, r in the first term is bounded by it: that closes the side which plain clipping leaves open.
    """
    ratio: Float[Tensor, " tokens"] = torch.exp(inputs.logprobs - inputs.old_logprobs)
    low, high = 1 - weights.epsilon, 1 + weights.high
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    advantages = inputs.advantages
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
}


def overlong_penalty(length: int, limit: int, shaping: OverlongShaping) -> float:
    """The penalty for a completion of `length` tokens when `limit` are allowed (DAPO's equation 13; both in tokens).

    None until `buffer_tokens` before the limit, then linear up to the whole penalty at the limit.
    """
    over = length - (limit - shaping.buffer_tokens)
    return shaping.penalty * min(1.0, max(0.0, over / shaping.buffer_tokens))


def objective_of(recipe: Recipe) -> Objective:
    """The recipe's objective; raises ValueError when its numbers do not go together."""
    objective = OBJECTIVES[recipe.objective]
    objective.check(LossWeights.of(recipe))
    return objective


def needs_behaviour(recipe: Recipe) -> bool:
    """Whether log-probabilities under the versions that sampled the rows must be recomputed."""
    return objective_of(recipe).weighs(LossWeights.of(recipe))
