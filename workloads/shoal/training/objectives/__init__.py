"""The objectives that a recipe can name, one file each. Pure; called by `batches` (advantages, divisor) and `update` (loss)."""

from shoal.contracts.recipe import Recipe
from shoal.training.loss import LossWeights, Objective
from shoal.training.objectives.dapo import DAPO
from shoal.training.objectives.decoupled_ppo import DECOUPLED_PPO
from shoal.training.objectives.dr_grpo import DR_GRPO
from shoal.training.objectives.one_sided_grpo import ONE_SIDED_GRPO
from shoal.training.objectives.rloo import RLOO
from shoal.training.objectives.two_sided_grpo import TWO_SIDED_GRPO

OBJECTIVES: dict[str, Objective] = {
    "two_sided_grpo": TWO_SIDED_GRPO,
    "one_sided_grpo": ONE_SIDED_GRPO,
    "dr_grpo": DR_GRPO,
    "dapo": DAPO,
    "rloo": RLOO,
    "decoupled_ppo": DECOUPLED_PPO,
}


def objective_of(recipe: Recipe) -> Objective:
    """The recipe's objective; raises ValueError when its numbers do not go together."""
    objective = OBJECTIVES[recipe.objective]
    objective.check(LossWeights.of(recipe))
    return objective


def needs_behaviour(recipe: Recipe) -> bool:
    """Whether log-probabilities under the versions that sampled the rows must be recomputed."""
    return objective_of(recipe).weighs(LossWeights.of(recipe))


__all__ = ["OBJECTIVES", "needs_behaviour", "objective_of"]
