"""The trainer's own functions, as the simulator uses them: the one place here that knows how `shoal.training` is called.

In: a base checkpoint, a recipe, groups of samples. Out: a policy after one step's updates, and what was measured. Called by `simulator`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shoal.contracts.recipe import Recipe
from shoal.contracts.trainer import TrainerSettings
from shoal.contracts.verdicts import RowReward
from shoal.training.batches import plan_step
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.enabled import recipe_extensions
from shoal.training.model import load_policy, load_reference
from shoal.training.optimizer import Optimizer
from shoal.training.rollouts import RolloutGroup, Sample
from shoal.training.update import plan_logprobs, train


@dataclass(frozen=True)
class Drawn:
    """A sampled completion with its reward, before it is known whether its group is used."""

    prompt: list[int]
    completion: list[int]
    target: int
    version: int
    reward: RowReward


@dataclass(frozen=True)
class Measured:
    """What one step's updates did. Gradient norms are before the clip; `largest_ratio` is over the tokens of the last
    optimizer batch, after its update.

    How far this version is from the next: `moved_kl` is their divergence in nats a token (Schulman's k3 over all tokens
    of the step, unbiased where these are this version's own), `moved_ratio` the mean of |ratio - 1|.
    """

    loss: float
    kl: float
    entropy: float
    clip_low: float
    clip_high: float
    clip_delta: float
    gradient_norm: float
    gradient_norm_max: float
    skipped: int
    largest_ratio: float
    moved_kl: float
    moved_ratio: float


class Learner:
    """A policy with its reference model, which is measured without a KL penalty too, and its optimizer."""

    def __init__(self, base: Path, recipe: Recipe, seed: int, settings: TrainerSettings | None = None) -> None:
        self._recipe, self._seed = recipe, seed
        self._advantages = Extensions(*recipe_extensions(recipe)).advantages
        self.policy = load_policy(base, settings)
        self._reference = load_reference(base)
        self._optimizer = Optimizer(self.policy.parameters(), recipe)

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of the policy's weights, for a sampler of another version."""
        return {name: tensor.clone() for name, tensor in self.policy.full_weights()}

    def learn(self, groups: list[list[Drawn]], step: int) -> Measured:
        """All updates of one step, with the functions and in the order of the trainer's own loop."""
        return self.learn_rows([RolloutGroup([sample_of(drawn) for drawn in group]) for group in groups], step)

    def learn_rows(self, rows: list[RolloutGroup], step: int) -> Measured:
        """The same of the trainer's own rows."""
        plan = plan_step(rows, self._recipe, seed=self._seed, step=step, advantages=self._advantages)
        old = plan_logprobs(self.policy, plan, _nothing, begin=1)
        reference = plan_logprobs(self._reference, plan, _nothing)
        done = train(self.policy, self._optimizer, plan, old, reference, self._recipe, _nothing)
        new = plan_logprobs(self.policy, plan, _nothing)
        changes = [
            [(after - before).cpu().numpy() for after, before in zip(batch, was, strict=True)]
            for batch, was in zip(new, done.old, strict=True)
        ]
        change = np.concatenate([each for batch in changes for each in batch]).clip(-50.0, 50.0)
        ratio = np.exp(change)
        return Measured(
            loss=done.loss,
            kl=0.0 if done.kl is None else done.kl,
            entropy=done.entropy,
            clip_low=done.clip_low,
            clip_high=done.clip_high,
            clip_delta=done.clip_delta,
            gradient_norm=float(np.mean(done.norms or [0.0])),
            gradient_norm_max=float(np.max(done.norms or [0.0])),
            skipped=done.skipped,
            largest_ratio=float(np.exp(min(50.0, max(each.max() for each in changes[-1])))),
            moved_kl=float((ratio - 1.0 - change).mean()),
            moved_ratio=float(np.abs(ratio - 1.0).mean()),
        )


def sample_of(drawn: Drawn) -> Sample:
    """`logprobs` are what a worker would claim; nothing that is used here reads them."""
    count = len(drawn.completion)
    return Sample(
        name="simulated",
        tokens=np.array([*drawn.prompt, *drawn.completion], dtype=np.int64),
        prompt_length=len(drawn.prompt),
        mask=np.ones(count, dtype=np.bool_),
        logprobs=np.zeros(count, dtype=np.float32),
        temperature=1.0,
        policy_version=drawn.version,
        task_reward=float(drawn.reward.task_reward or 0.0),
        length_penalty=float(drawn.reward.length_penalty or 0.0),
        reward=float(drawn.reward.reward or 0.0),
    )


def _nothing() -> None:
    """Called after every micro-batch by the trainer's functions; there is nobody to tell."""
