"""AdamW with linear warm-up, a gradient-norm clip, and a guard: a norm that is not finite never reaches the weights.

In: parameters with gradients. Out: whether the update was applied, and the norm before the clip. The learning rate is a pure
function of the number of updates applied so far, so that resuming needs that number and AdamW's moments, no scheduler
object. Called by `update`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from shoal.contracts.recipe import Recipe


@dataclass(frozen=True)
class Applied:
    """One optimizer step: `gradient_norm` before the clip (may be infinite or NaN, then `applied` is False)."""

    applied: bool
    gradient_norm: float
    learning_rate: float


def learning_rate(recipe: Recipe, updates: int) -> float:
    """Of the update that follows `updates` applied ones: linear up to the peak over `warmup_steps`, then constant."""
    return recipe.learning_rate * min(1.0, (updates + 1) / max(1, recipe.warmup_steps))


class Optimizer:
    """AdamW over a model's parameters as the recipe says. `updates` counts the applied ones, over the whole run."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], recipe: Recipe, updates: int = 0) -> None:
        self._recipe = recipe
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.updates = updates
        self.adamw = torch.optim.AdamW(
            self._parameters,
            lr=recipe.learning_rate,
            betas=(recipe.adam_beta1, recipe.adam_beta2),
            weight_decay=recipe.weight_decay,
        )

    def step(self) -> Applied:
        """Clip, apply and clear the gradients; when their norm is not finite, only clear them."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._recipe.max_grad_norm))
        rate = learning_rate(self._recipe, self.updates)
        finite = bool(torch.isfinite(torch.tensor(norm)))
        if finite:
            for group in self.adamw.param_groups:
                group["lr"] = rate
            self.adamw.step()
            self.updates += 1
        self.adamw.zero_grad(set_to_none=True)
        return Applied(finite, norm, rate)
