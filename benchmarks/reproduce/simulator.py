"""One arm with one seed: a run in one process, with an exact async level and the trainer's own functions.

In: an arm, a seed, the cache folder. Out: one record a step. The system around the trainer is left out: rollouts of step `s` are sampled
here, in transformers, with the weights of version `s - k` (version 0 before that), scored by the environment, filtered as the orchestrator
does, and handed to `ours.Learner`. An arm's boundaries let rows go on under the weights of version `s - k + 1`. All is
deterministic except for the order of floating-point sums. Called by `__main__`.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.reproduce.arms import Arm
from benchmarks.reproduce.base import Start, start_of
from benchmarks.reproduce.ours import Drawn, Learner
from shoal.contracts.tasks import Task
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import Environment, Score
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import sample
from shoal.environments.tokens import completion_text
from shoal.rewards.total import total_reward

MEASURE_EVERY_STEPS = 5
SPARE_GROUPS = 1.4
"""Groups sampled at once, in multiples of those that a step needs; a round more costs as much as a full one."""
MOST_ROUNDS = 8
"""A policy that gives no signal after so many rounds trains on what there is: the figure then shows it."""
REAL_TRAINER = TrainerSettings(lora=Lora(), activation_recomputation="Off")
"""Adapters of rank 16. Packs are short, so activations need not be computed again."""

Record = dict[str, float | int | None]
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Answers:
    """Sampling and scoring with one model object whose weights change."""

    model: Any
    tokenizer: Any
    arm: Arm
    environment: Environment = field(default_factory=Arithmetic)

    def draw(
        self, asked: Sequence[tuple[Task, int]], version: int, seed: int, then: Weights | None = None
    ) -> list[Drawn]:
        """One scored completion for each (task, target length). `then` are weights under which rows go on; they stay loaded."""
        ends = frozenset([self.model.config.eos_token_id])
        prompts = [prompt_tokens(self.tokenizer, self.environment, task, target, None) for task, target in asked]
        found = []
        first = self.arm.max_completion if then is None else max(self.arm.boundaries)
        drawn = sample(self.model, prompts, first, seed)
        if then is not None:
            self.model.load_state_dict(then)
            drawn = self._gone_on(prompts, drawn, seed)
        for (task, target), prompt, tokens in zip(asked, prompts, drawn, strict=True):
            scored = self.environment.score(task, completion_text(self.tokenizer, tokens, ends))
            given = scored.task_reward if isinstance(scored, Score) else None
            reward = total_reward(given, len(tokens), target, self.arm.lengths)
            found.append(Drawn(prompt, tokens, target, version, reward))
        return found

    def _gone_on(self, prompts: Sequence[list[int]], drawn: Sequence[list[int]], seed: int) -> list[list[int]]:
        """Each completion up to a boundary that chance draws, and from there anew under the weights that are loaded now."""
        chance = random.Random(f"boundaries {seed}")
        cuts = [chance.choice(self.arm.boundaries) for _ in drawn]
        found, end = [list(tokens) for tokens in drawn], self.model.config.eos_token_id
        for cut in self.arm.boundaries:
            rows = [
                row
                for row, tokens in enumerate(drawn)
                if cuts[row] == cut and (len(tokens) > cut or (len(tokens) == cut and tokens[-1] != end))
            ]
            begun = [[*prompts[row], *drawn[row][:cut]] for row in rows]
            anew = sample(self.model, begun, self.arm.max_completion - cut, seed + cut) if rows else []
            for row, tokens in zip(rows, anew, strict=True):
                found[row] = [*drawn[row][:cut], *tokens]
        return found


def simulate(arm: Arm, seed: int, cache: Path) -> list[Record]:
    """Train `arm.steps` steps and return their records; the last one also has the held-out lengths by target."""
    start = start_of(arm, seed, cache)
    torch.manual_seed(seed)
    settings = TrainerSettings(compile=arm.compiled) if arm.model == "taught" else REAL_TRAINER
    learner = Learner(start.folder, arm.full_recipe(), seed, settings)
    answers = Answers(
        AutoModelForCausalLM.from_pretrained(start.folder, dtype="float32").eval(),
        AutoTokenizer.from_pretrained(start.folder),
        arm,
        start.environment,
    )
    versions = deque([(0, learner.weights())], maxlen=arm.async_level + 1)
    chance = random.Random(f"prompts {seed}")
    records: list[Record] = []
    for step in range(arm.steps):
        record: Record = {"step": step}
        if step % MEASURE_EVERY_STEPS == 0:
            record |= measure(answers, learner.weights(), start, seed)
        groups, sampled = sample_groups(answers, start, chance, versions, seed * 10_000 + step)
        record["version"] = versions[0][0]
        record |= sampling_record(groups, sampled) | asdict(learner.learn(groups, step))
        records.append(record)
        versions.append((step + 1, learner.weights()))
    records.append({"step": arm.steps} | measure(answers, learner.weights(), start, seed))
    return records


def sample_groups(
    answers: Answers, start: Start, chance: random.Random, versions: Sequence[tuple[int, Weights]], seed: int
) -> tuple[list[list[Drawn]], list[list[Drawn]]]:
    """The groups to train on, and all that were sampled for them."""
    recipe, sampled = answers.arm.full_recipe(), []
    version, weights = versions[0]
    then = versions[min(1, len(versions) - 1)][1] if answers.arm.boundaries else None
    filtered = answers.arm.online_filter
    used: list[list[Drawn]] = []
    for attempt in range(MOST_ROUNDS):
        count = round(recipe.prompts_per_step * (SPARE_GROUPS if filtered else 1.0))
        asked = [(chance.choice(start.tasks), chance.choice(answers.arm.targets)) for _ in range(count)]
        answers.model.load_state_dict(weights)
        every = [one for one in asked for _ in range(recipe.group_size)]
        rows = answers.draw(every, version, seed + 1000 * attempt, then)
        groups = [rows[first : first + recipe.group_size] for first in range(0, len(rows), recipe.group_size)]
        sampled += groups
        used += [group for group in groups if not filtered or carries_signal(group)]
        if len(used) >= recipe.prompts_per_step:
            break
    return (used or sampled)[: recipe.prompts_per_step], sampled


def carries_signal(group: Sequence[Drawn]) -> bool:
    """Whether task rewards differ within the group (paper section 3.3.2)."""
    return len({drawn.reward.task_reward for drawn in group}) > 1


def sampling_record(groups: Sequence[Sequence[Drawn]], sampled: Sequence[Sequence[Drawn]]) -> Record:
    """Means over everything that was sampled: the online filter does not colour them."""
    rows = [drawn for group in sampled for drawn in group]
    return {
        "reward": float(np.mean([drawn.reward.reward or 0.0 for drawn in rows])),
        "task_reward": float(np.mean([drawn.reward.task_reward or 0.0 for drawn in rows])),
        "completion_length": float(np.mean([len(drawn.completion) for drawn in rows])),
        "groups_sampled": len(sampled),
        "signal_share": float(np.mean([carries_signal(group) for group in sampled])),
        "groups_used": len(groups),
    }


def measure(answers: Answers, weights: dict[str, torch.Tensor], start: Start, seed: int) -> Record:
    """Task reward and length error (tokens) of the newest weights on held-out tasks, the same ones and the same chance each time."""
    answers.model.load_state_dict(weights)
    targets = answers.arm.targets
    asked = [(task, targets[index % len(targets)]) for index, task in enumerate(start.held_out)]
    rows = answers.draw(asked, 0, seed)
    by_target: Record = {
        f"length_at_{target}": float(np.mean([len(drawn.completion) for drawn in rows if drawn.target == target]))
        for target in targets
    }
    return {
        "held_out_reward": float(np.mean([drawn.reward.task_reward or 0.0 for drawn in rows])),
        "length_error": float(np.mean([abs(len(drawn.completion) - drawn.target) for drawn in rows])),
        "length_error_share": float(np.mean([abs(len(drawn.completion) / drawn.target - 1.0) for drawn in rows])),
    } | by_target
