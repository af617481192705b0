"""The outer step: SGD with Nesterov momentum on the mean pseudo-gradient (arXiv:2311.08105, algorithm 1; OpenDiLoCo's 0.7 and 0.9).

    momentum <- mu * momentum + gradient;   weights <- weights - rate * (gradient + mu * momentum)

In: weights, momentum and mean, float32 on the host. Out: the first two changed in place. Every operation is element by element, one
rounding each. So all islands that begin with the same bits end with the same bits, whatever processor they have. Pure; called by `island`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class OuterSettings:
    """OpenDiLoCo's values (arXiv:2407.07852, section 2)."""

    learning_rate: float = 0.7
    momentum: float = 0.9


def weighted_sum(parts: Iterable[tuple[float, Float[Tensor, " part"]]], count: int) -> Float[Tensor, " part"]:
    """The sum of coefficient times vector, in the order given, accumulated in float32."""
    total = torch.zeros(count, dtype=torch.float32)
    for coefficient, values in parts:
        total += values * torch.tensor(coefficient, dtype=torch.float32)
    return total


def outer_step(
    weights: Float[Tensor, " values"],
    momentum: Float[Tensor, " values"],
    mean: Float[Tensor, " values"],
    given: OuterSettings,
) -> None:
    """Change `weights` and `momentum` in place by the mean of `weights at the round's start - weights at its end`."""
    momentum.mul_(given.momentum)
    momentum.add_(mean)
    step = momentum * given.momentum
    step.add_(mean)
    step.mul_(given.learning_rate)
    weights.sub_(step)
