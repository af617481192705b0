"""GRPO with two-sided clipping, the recipe of INTELLECT-2 (paper section 3.4) and the default.

    -min( min(r, delta) * A, clip(r, 1 - epsilon, 1 + epsilon) * A )

`min(r, delta)` bounds the loss of a bad token that became much likelier, where one-sided clipping has no bound and gradients spike.
"""

from shoal.training.loss import LossInputs, LossWeights, Objective, Surrogate
from shoal.training.objectives.clipping import clipped_surrogate


def surrogate(inputs: LossInputs, weights: LossWeights) -> Surrogate:
    """The paper's loss per token."""
    return clipped_surrogate(inputs, weights, delta=weights.delta)


TWO_SIDED_GRPO = Objective(surrogate)
