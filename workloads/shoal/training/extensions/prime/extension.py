"""When PRIME's reward model is asked and updated: before each step's updates, with the weights of the step's start (algorithm 1 of the paper).

In: the seam's events. Out: the plan with PRIME's advantages, the reward model in every training state, its numbers in reports and gauges.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import Counter, Gauge

from shoal.contracts.prime import PrimeSettings
from shoal.contracts.recipe import Recipe
from shoal.contracts.steps import StepMetrics
from shoal.telemetry import unmeasured
from shoal.training.advantages import group_advantages
from shoal.training.batches import Scored, StepPlan, shaped_rewards
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extension
from shoal.training.extensions.prime.reward_model import RewardModel, outcomes_of
from shoal.training.host_copy import Learner
from shoal.training.metrics import finite
from shoal.training.model import Policy, load_policy
from shoal.training.rollouts import RolloutGroup
from shoal.training.update import Beat, LogProbs

REWARD_MODEL = {
    "prm_loss": unmeasured(
        Gauge(
            "shoal_trainer_prm_loss",
            "Mean loss of PRIME's reward model in the last step (nats a row); NaN: there is none.",
        )
    ),
    "prm_accuracy": unmeasured(
        Gauge(
            "shoal_trainer_prm_accuracy",
            "Share of rows whose outcome PRIME's reward model predicted; NaN: there is none.",
        )
    ),
    "prm_gradient_norm": unmeasured(
        Gauge(
            "shoal_trainer_prm_gradient_norm",
            "Gradient norm of PRIME's reward model before the clip; NaN: there is none.",
        )
    ),
}
PRM_SKIPPED = Counter(
    "shoal_trainer_prm_skipped_updates_total",
    "Skipped updates of PRIME's reward model: the gradient norm was not finite.",
)


def outcome_advantages(
    groups: Sequence[RolloutGroup], recipe: Recipe, completion_limit: int | None = None
) -> list[Scored]:
    """Each sample with the advantage of its outcome alone, leave-one-out and undivided; `RewardModel.complete` adds the rest."""
    return [
        (sample, advantage)
        for group in groups
        for sample, advantage in zip(
            group.samples,
            group_advantages(
                shaped_rewards(group, recipe, completion_limit), normalize=False, leave_one_out=True
            ).tolist(),
            strict=True,
        )
    ]


class PrimeExtension(Extension):
    """The extension of algorithm `prime`. The reward model begins as the base model; states bring it back."""

    advantages = staticmethod(outcome_advantages)

    def __init__(self, recipe: Recipe, settings: PrimeSettings) -> None:
        self._recipe, self._settings = recipe, settings

    def attach(self, context: TrainerContext, policy: Policy) -> None:
        self._progress = context.progress
        trainer = context.config.trainer
        model = load_policy(context.base, trainer, context.ranks, context.liveness.progress, context.weights)
        on_host = trainer.offloaded.optimizer
        self.reward_model = RewardModel(model, self._recipe, self._settings, on_host=on_host)

    def learners(self) -> Mapping[str, Learner]:
        return {"beside": self.reward_model.learner}

    def before_updates(
        self, groups: Sequence[RolloutGroup], plan: StepPlan, reference: LogProbs | None, beat: Beat
    ) -> StepPlan:
        assert reference is not None
        with self._progress.phase("process_rewards"):
            outcomes = outcomes_of(groups)
            plan = self.reward_model.complete(plan, reference, outcomes, beat)
        with self._progress.phase("reward_model"):
            self._updates = self.reward_model.learn(plan, reference, outcomes, beat)
        return plan

    def measured(self, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        return {
            "prm_loss": finite(self._updates.loss),
            "prm_accuracy": self._updates.accuracy,
            "prm_gradient_norm": float(np.mean(self._updates.norms or [0.0])),
            "prm_skipped_updates": self._updates.skipped,
        }

    def show(self, metrics: StepMetrics, *, finished: bool) -> None:
        for name, gauge in REWARD_MODEL.items():
            value = getattr(metrics, name)
            gauge.set(math.nan if value is None else value)
        if finished:
            PRM_SKIPPED.inc(metrics.prm_skipped_updates)
