"""GRPO as first published (DeepSeekMath, arXiv:2402.03300, equation 3), token-level: PPO's clip, group advantages.

-min( r * A, clip(r, 1 - epsilon, 1 + epsilon) * A )
"""

from shoal.training.loss import LossInputs, LossWeights, Objective, Surrogate
from shoal.training.objectives.clipping import clipped_surrogate


def surrogate(inputs: LossInputs, weights: LossWeights) -> Surrogate:
    """The clipped surrogate per token; unbounded where A < 0 and r is large."""
    return clipped_surrogate(inputs, weights)


ONE_SIDED_GRPO = Objective(surrogate)
