"""DAPO (arXiv:2503.14476): an asymmetric clip, token-level normalisation, dynamic sampling, overlong reward shaping.

    -min( r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A )

The upper half-width is `clipEpsilonHigh` (0.28 in that paper, beside 0.2). Dynamic sampling is the run's online filter, and the
shaping is `overlong_penalty`, taken from rewards before advantages when the recipe has `overlongShaping`.
"""

from shoal.contracts.recipe import OverlongShaping
from shoal.training.loss import Objective
from shoal.training.objectives.one_sided_grpo import surrogate

DAPO = Objective(surrogate)


def overlong_penalty(length: int, limit: int, shaping: OverlongShaping) -> float:
    """What is taken from the reward of a completion of `length` tokens when `limit` are allowed (equation 13; both in tokens).

    None until `buffer_tokens` before the limit, then linear up to the whole penalty at the limit.
    """
    over = length - (limit - shaping.buffer_tokens)
    return shaping.penalty * min(1.0, max(0.0, over / shaping.buffer_tokens))
