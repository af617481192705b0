"""PRIME's implicit process reward model: a second model that learns outcomes beside the policy, and completes the plan's advantages.

In: the plan of a step, whose advantages are those of the outcome alone, and the base model's log-probabilities. Out: the plan with PRIME's
advantages; the reward model after one update for each optimizer batch. Rewards come from the weights at the start of the step (algorithm 1 of
the paper: one forward pass, then the update), so the order of the two is fixed. Formulas are in `formulas`. All ranks call
everything here alike: what a group's baseline and the whitening need of other ranks is summed over them. Called by `extension`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoal.contracts.prime import PrimeSettings
from shoal.contracts.recipe import Recipe
from shoal.training.batches import MicroBatch, OptimizerBatch, StepPlan
from shoal.training.completions import Packed
from shoal.training.extensions.prime.formulas import (
    loss_slopes,
    outcome_losses,
    process_baselines,
    process_returns,
    token_rewards,
    whitened,
)
from shoal.training.host_copy import Learner
from shoal.training.model import Policy
from shoal.training.optimizer import Applied, Optimizer
from shoal.training.rollouts import RolloutGroup
from shoal.training.update import Beat, LogProbs, Steps, over_packs, plan_logprobs


@dataclass(frozen=True)
class Outcomes:
    """The verdicts' outcome of each sample of a step, numbered through its groups: the group's number, and the outcome (0 to 1)."""

    groups: Int[Tensor, " step"]
    values: Float[Tensor, " step"]


@dataclass(frozen=True)
class RewardModelUpdates(Steps):
    """Results of the reward model's updates: mean loss over rows (nats) and share of rows judged right, each before its update."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class RewardModelRecipe:
    """How the reward model is optimised, as `optimizer.Hyperparameters`: its own rate and clip, the recipe's AdamW, no warm-up, no Muon."""

    learning_rate: float
    max_grad_norm: float
    adam_beta1: float
    adam_beta2: float
    weight_decay: float
    warmup_steps: int = 0
    muon: None = None

    @classmethod
    def of(cls, recipe: Recipe, settings: PrimeSettings) -> "RewardModelRecipe":
        return cls(
            learning_rate=settings.learning_rate,
            max_grad_norm=settings.max_grad_norm,
            adam_beta1=recipe.adam_beta1,
            adam_beta2=recipe.adam_beta2,
            weight_decay=recipe.weight_decay,
        )


def outcomes_of(groups: Sequence[RolloutGroup]) -> Outcomes:
    """The samples' groups and outcomes, in the order in which `batches.plan_step` counts them. An outcome beyond 0 to 1 counts as the nearest."""
    numbers = [number for number, group in enumerate(groups) for _ in group.samples]
    values = [sample.task_reward for group in groups for sample in group.samples]
    return Outcomes(torch.tensor(numbers), torch.tensor(values, dtype=torch.float64).clamp(0.0, 1.0))


class OutcomeLoss:
    """The reward model's loss of one micro-batch, as `Policy.forward` asks for it: `look` first, then tile by tile.

    What a tile gives has the loss's gradient, not its value: the loss of a whole completion is in `sums` (loss, right ones).
    """

    def __init__(
        self,
        packed: Packed,
        reference: Float[Tensor, " completion"],
        outcomes: Float[Tensor, " samples"],
        beta: float,
        rows: int,
    ) -> None:
        """`rows` is the count of completions of the optimizer batch over all ranks, which the loss is divided by."""
        self._packed, self._reference, self._outcomes = packed, reference, outcomes
        self._beta, self._rows = beta, rows
        self._slopes: Float[Tensor, " completion"] | None = None
        self.sums = torch.zeros(2, dtype=torch.float64, device=reference.device)

    def look(self, logprobs: Float[Tensor, " completion"]) -> None:
        """Score every completion of the pack, and fix each token's slope."""
        scores = self._packed.sums(token_rewards(logprobs, self._reference, self._beta))
        there = self._packed.counts() > 0
        right = (scores > 0) == (self._outcomes > 0.5)
        losses = outcome_losses(scores, self._outcomes)
        self.sums += torch.stack([(losses * there).sum(), (right & there).double().sum()])
        slopes = loss_slopes(scores, self._outcomes, self._beta) / self._rows
        self._slopes = slopes[self._packed.owners].to(logprobs.dtype)

    def __call__(
        self, here: slice, logprobs: Float[Tensor, " tile"], entropy: Float[Tensor, " tile"]
    ) -> Float[Tensor, ""]:
        if self._slopes is None:
            raise RuntimeError("a tile was asked for before the log-probabilities were looked at")
        return (self._slopes[here] * logprobs).sum()


class RewardModel:
    """The reward model of a run with algorithm `prime`, with its optimizer, whose moments may lie `on_host` as the policy's."""

    def __init__(self, model: Policy, recipe: Recipe, settings: PrimeSettings, *, on_host: bool = False) -> None:
        self._model, self._settings = model, settings
        optimizer = Optimizer(model.parameters(), RewardModelRecipe.of(recipe, settings), on_host=on_host)
        self.learner = Learner(model, optimizer)

    def complete(self, plan: StepPlan, reference: LogProbs, outcomes: Outcomes, beat: Beat) -> StepPlan:
        """The plan with PRIME's advantages instead of the outcome's alone."""
        settings = self._settings
        logprobs = plan_logprobs(self._model, plan, beat)
        rewards = [
            [token_rewards(ours, base, settings.beta).cpu() for ours, base in zip(*pair, strict=True)]
            for pair in zip(logprobs, reference, strict=True)
        ]
        baselines = self._baselines(plan, rewards, outcomes)
        mixed: list[list[Float[Tensor, " _"]]] = []
        for batch, parts in zip(plan.optimizer_batches, rewards, strict=True):
            mixed.append([])
            for packed, numbers, rewarded in zip(batch.micro_batches, batch.numbers, parts, strict=True):
                returns = process_returns(rewarded, baselines[places(numbers)], packed_of(packed, numbers))
                mixed[-1].append(
                    settings.process_weight * returns + settings.outcome_weight * packed.advantages.double()
                )
        mean, deviation = self._spread(mixed, plan.token_count)
        return replace(
            plan,
            optimizer_batches=[
                _with_advantages(batch, [whitened(values, mean, deviation) for values in parts])
                for batch, parts in zip(plan.optimizer_batches, mixed, strict=True)
            ],
        )

    def learn(self, plan: StepPlan, reference: LogProbs, outcomes: Outcomes, beat: Beat) -> RewardModelUpdates:
        """One update for each optimizer batch of the plan. An update whose gradient norm is not finite is left out and counted."""
        sums = torch.zeros(2, dtype=torch.float64)
        applied: list[Applied] = []
        for batch, parts in zip(plan.optimizer_batches, reference, strict=True):
            for packed, numbers, base in zip(batch.micro_batches, batch.numbers, parts, strict=True):
                here = packed.to(self._model.device)
                here_outcomes = outcomes.values[places(numbers)].to(here.tokens.device)
                loss = OutcomeLoss(packed_of(here, numbers), base, here_outcomes, self._settings.beta, batch.rows)
                value, _, _ = self._model(here, loss, loss.look)
                value.backward()
                sums += loss.sums.cpu()
                beat()
            applied.append(self.learner.optimizer.step())
        rows = sum(batch.rows for batch in plan.optimizer_batches)
        loss_sum, right = over_packs(sums, self._model, "the reward model's sums of a step")
        return RewardModelUpdates(applied=applied, loss=loss_sum / rows, accuracy=right / rows)

    def _baselines(
        self, plan: StepPlan, rewards: list[list[Float[Tensor, " _"]]], outcomes: Outcomes
    ) -> Float[Tensor, " step"]:
        """Of every sample of the step, whichever rank has it."""
        count = len(outcomes.groups)
        found = torch.zeros(2, count, dtype=torch.float64)
        for batch, parts in zip(plan.optimizer_batches, rewards, strict=True):
            for packed, numbers, rewarded in zip(batch.micro_batches, batch.numbers, parts, strict=True):
                whose, here = packed_of(packed, numbers), places(numbers)
                found[0, here], found[1, here] = whose.sums(rewarded), whose.counts()
        sums = torch.tensor(over_packs(found.flatten(), self._model, "process rewards of a step"), dtype=torch.float64)
        totals, tokens = sums[:count], sums[count:]
        return process_baselines(totals / tokens.clamp(min=1), tokens > 0, outcomes.groups)

    def _spread(self, values: list[list[Float[Tensor, " _"]]], count: int) -> tuple[float, float]:
        """Mean and deviation (the population's) over all tokens of the step, of all ranks."""
        flat = torch.cat([torch.zeros(0, dtype=torch.float64), *(part for parts in values for part in parts)])
        mean = over_packs(flat.sum()[None], self._model, "the mean of a step's advantages")[0] / count
        squares = over_packs(((flat - mean) ** 2).sum()[None], self._model, "the spread of a step's advantages")[0]
        return mean, (squares / count) ** 0.5


def packed_of(batch: MicroBatch, numbers: Sequence[int]) -> Packed:
    """Which sample each token of a micro-batch belongs to; a filler's one segment is none."""
    if not numbers:
        return Packed(batch.predicted_from, 0)
    return batch.completions


def places(numbers: Sequence[int]) -> Int[Tensor, " samples"]:
    """The samples' numbers as an index; a filler has none."""
    return torch.tensor(numbers, dtype=torch.int64)


def _with_advantages(batch: OptimizerBatch, advantages: list[Float[Tensor, " _"]]) -> OptimizerBatch:
    kept = [
        replace(packed, advantages=values.float())
        for packed, values in zip(batch.micro_batches, advantages, strict=True)
    ]
    return replace(batch, micro_batches=kept)
