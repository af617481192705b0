"""PRIME, process reinforcement through implicit rewards (Cui et al., arXiv:2502.01456): its rewards, its reward model's loss, its advantages.

In: log-probabilities of sampled tokens under the implicit process reward model (a copy of the policy's base, trained on outcomes) and under the
base model. Out: a reward a token, a loss a completion, an advantage a token. For completion i of a group, with outcome o_i (its
task reward, 0 to 1); reward R_i (the same less penalties of length, where the run has such); q_t = log pi_prm(y_t) - log pi_ref(y_t), and r_t =
beta * q_t:

    loss of the reward model   -( o * log sigmoid(sum_t r_t) + (1 - o) * log(1 - sigmoid(sum_t r_t)) ), mean over completions      (equation 4)
    process baseline           b_i = mean over the other completions j of the group of (mean_t r_t of j)
    process return             P_t = sum_{s >= t} (r_s - b_i)
    outcome advantage          O_i = R_i - mean over the others of R_j          (`advantages.group_advantages`, leave-one-out)
    advantage                  A_t = whiten( w_p * P_t + w_o * O_i )            over all sampled tokens of the step     (equation 5)

Only tokens that the model sampled count: tool output has no reward and no return. The policy's loss is the recipe's objective with these
advantages. Pure; called by `reward_model`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from shoal.training.advantages import SMALLEST_DEVIATION
from shoal.training.completions import Packed


def token_rewards(
    prm_logprobs: Float[Tensor, " tokens"], reference_logprobs: Float[Tensor, " tokens"], beta: float
) -> Float[Tensor, " tokens"]:
    """r_t = beta * (log pi_prm - log pi_ref), float64."""
    return beta * (prm_logprobs.double() - reference_logprobs.double())


def outcome_losses(scores: Float[Tensor, " samples"], outcomes: Float[Tensor, " samples"]) -> Float[Tensor, " samples"]:
    """Binary cross-entropy of sigmoid(score) against the outcome; exact for scores of any size (`softplus` gives up beyond 20)."""
    return -(outcomes * logsigmoid(scores) + (1 - outcomes) * logsigmoid(-scores))


def loss_slopes(
    scores: Float[Tensor, " samples"], outcomes: Float[Tensor, " samples"], beta: float
) -> Float[Tensor, " samples"]:
    """Derivative of a sample's loss by the log-probability of any one of its tokens: beta * (sigmoid(score) - outcome)."""
    return beta * (torch.sigmoid(scores) - outcomes)


def process_baselines(
    means: Float[Tensor, " step"], present: Bool[Tensor, " step"], groups: Int[Tensor, " step"]
) -> Float[Tensor, " step"]:
    """b_i of each sample of a step: the mean over its siblings of their mean token reward.

    `groups` numbers each sample's group from 0; samples that are not `present` (without a sampled token) are nobody's siblings. Who has no
    sibling is compared with itself.
    """
    counted = present.to(means.dtype)
    size = int(groups.max()) + 1 if len(groups) else 0
    totals = torch.zeros(size, dtype=means.dtype, device=means.device).index_add_(0, groups, means * counted)
    members = torch.zeros(size, dtype=means.dtype, device=means.device).index_add_(0, groups, counted)
    others = members[groups] - counted
    return torch.where(others > 0, (totals[groups] - means * counted) / others.clamp(min=1), means)


def process_returns(
    rewards: Float[Tensor, " tokens"], baselines: Float[Tensor, " samples"], packed: Packed
) -> Float[Tensor, " tokens"]:
    """P_t: the reverse cumulative sum, within each sample, of rewards less the sample's baseline. Undiscounted, as in the paper."""
    centred = rewards - baselines[packed.owners]
    so_far = centred.cumsum(0)
    ends = packed.sums(centred).cumsum(0)
    return ends[packed.owners] - so_far + centred


def whitened(values: Float[Tensor, " tokens"], mean: float, deviation: float) -> Float[Tensor, " tokens"]:
    """(value - mean) / deviation, both over all tokens of the step. Values that are all equal, except for rounding, carry no signal: zeros."""
    if deviation < SMALLEST_DEVIATION:
        return torch.zeros_like(values)
    return (values - mean) / deviation
