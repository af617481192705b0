"""Which extensions a run has: the one place that names them all."""

from shoal.contracts.recipe import Recipe
from shoal.contracts.run import RunConfig
from shoal.storage import Store, open_island_store
from shoal.training.extensions.base import Extension, Extensions
from shoal.training.extensions.islands.extension import Islands
from shoal.training.extensions.islands.membership import own_island
from shoal.training.extensions.prime.extension import PrimeExtension
from shoal.training.extensions.vine.extension import Vine


def enabled_extensions(config: RunConfig, store: Store, deadline_seconds: float) -> Extensions:
    """Those of the run's settings. `deadline_seconds`: of requests to an island's own store. Raises what `own_island` raises."""
    found: list[Extension] = []
    own = own_island(config, store, lambda name: open_island_store(config, name, deadline_seconds))
    if own is not None:
        found.append(Islands(own))
    if config.mode != "SFT":
        found += recipe_extensions(config.recipe)
    return Extensions(*found)


def recipe_extensions(recipe: Recipe) -> list[Extension]:
    """Those that the recipe's algorithm needs."""
    found: list[Extension] = []
    if recipe.process_rewards is not None:
        found.append(PrimeExtension(recipe, recipe.process_rewards))
    if recipe.vine is not None:
        found.append(Vine(recipe.vine))
    return found
