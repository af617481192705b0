"""Decoupled PPO (Hilton, Cobbe, Schulman: "Batch size-invariance for policy optimization", arXiv:2110.00641, section 3).

    -(p_proximal / p_behaviour) * min( r * A, clip(r, 1 - epsilon, 1 + epsilon) * A ),      r = p / p_proximal

The proximal policy is the one that the clip stays near: the weights at the start of the step. The behaviour policy is the version that
sampled the row, several steps older when rollouts are asynchronous. The weight may be capped by `importanceCap`.
"""

from shoal.training.loss import Objective
from shoal.training.objectives.one_sided_grpo import surrogate

DECOUPLED_PPO = Objective(surrogate, needs_behaviour=True)
"""The importance weight is applied in `loss`, as for every objective that has one."""
