"""VinePPO's part in training: which rows of a file are continuations, advantages from their values, and the values in report and gauge."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import Gauge

from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import Rollout
from shoal.contracts.steps import StepMetrics
from shoal.contracts.verdicts import RowReward
from shoal.contracts.vine import VineSettings, continuations
from shoal.training.batches import Scored, overlong
from shoal.training.extensions.base import Extension
from shoal.training.extensions.vine.values import boundary_means, token_advantages, values_of, whitened
from shoal.training.rollouts import BadBatch, ContinuationReward, RolloutGroup, Sample

VALUE = Gauge(
    "shoal_trainer_value",
    "Mean Monte-Carlo value of the last step at each boundary of a completion, the prompt's first (algorithm vineppo).",
    ["boundary"],
)


def value_advantages(
    groups: Sequence[RolloutGroup], recipe: Recipe, completion_limit: int | None = None
) -> list[Scored]:
    """Each sample of a step with one advantage a token, from the values along its completion."""

    def shaped(sample: Sample, reward: float, length: int) -> float:
        return reward - overlong(sample, length, recipe, completion_limit)

    samples = [sample for group in groups for sample in group.samples]
    advantages = [token_advantages(values) for group in groups for values in values_of(group, shaped)]
    if recipe.normalizes_advantages:
        advantages = whitened(advantages, samples)
    return list(zip(samples, advantages, strict=True))


class VineContinuations:
    """Reads the continuations of a file, as `rollouts.Continuations`."""

    def __init__(self, settings: VineSettings) -> None:
        self._settings = settings
        self.rows_each = settings.rows_each

    def estimates(
        self, rows: Sequence[Rollout], rewards: Sequence[RowReward], completions: int
    ) -> list[list[ContinuationReward]]:
        found: list[list[ContinuationReward]] = [[] for _ in range(completions)]
        for each in continuations(completions, self._settings):
            row, parent, reward = rows[each.row], rows[each.parent], rewards[each.row].reward
            position = self._settings.positions(len(parent.completion_tokens))[each.boundary - 1]
            if list(row.prompt_tokens) != [*parent.prompt_tokens, *parent.completion_tokens[:position]]:
                raise BadBatch(f"row {each.row} does not continue the first {position} tokens of row {each.parent}")
            if reward is not None:
                length = position + len(row.completion_tokens)
                found[each.parent].append(ContinuationReward(each.boundary, position, reward, length))
        return found


class Vine(Extension):
    """The extension of algorithm `vineppo`."""

    advantages = staticmethod(value_advantages)

    def __init__(self, settings: VineSettings) -> None:
        self._segments = settings.segments
        self.continuations = VineContinuations(settings)

    def measured(self, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        return {"value_by_boundary": boundary_means(groups, self._segments)}

    def show(self, metrics: StepMetrics, *, finished: bool) -> None:
        VALUE.clear()
        for boundary, value in enumerate(metrics.value_by_boundary):
            VALUE.labels(str(boundary)).set(value)
