"""One arm with one seed: a synchronous run in one process, with the trainer's own functions and, for VinePPO, continuations by the run's own rules.

In: an arm, a seed, a cache folder. Out: a `Curve`. The system around the trainer is left out, as in `benchmarks.reproduce`. Continuations are sampled
of the groups that are trained on; those of groups that the online filter drops teach nothing, but workers sample them too, and they are counted
as if they were as long. Called by `__main__`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.reproduce.arms import ARMS, MAX_LENGTH, TARGETS
from benchmarks.reproduce.base import Start, start_of
from benchmarks.reproduce.ours import Drawn, Learner, sample_of
from benchmarks.reproduce.simulator import Answers, carries_signal
from shoal.contracts.algorithm import Algorithm, VinePpo
from shoal.contracts.recipe import Recipe
from shoal.contracts.tasks import Task
from shoal.contracts.vine import VineSettings, continuations
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import Score
from shoal.environments.sampling import sample
from shoal.environments.tokens import completion_text
from shoal.rewards.total import total_reward
from shoal.training.rollouts import ContinuationReward, RolloutGroup

SETTINGS = VinePpo(segments=3, continuations=4)
"""That of examples/vineppo: completions have some 24 tokens."""
_COMMON = {
    "prompts_per_step": 12,
    "group_size": 8,
    "optimizer_steps": 2,
    "learning_rate": 1.5e-4,
    "warmup_steps": 5,
    "max_sequence_length": MAX_LENGTH,
    "pack_length": 512,
}
RECIPES = {
    "grpo": Recipe(**_COMMON),
    "vineppo": Recipe(**_COMMON, algorithm=Algorithm(vineppo=SETTINGS)),
}
"""Nothing differs but where advantages come from."""
SPARE_GROUPS = 1.4
MOST_ROUNDS = 6
BASE = 1
"""The seed of the one base model: what differs between seeds is prompts and chance."""

Asked = tuple[Task, int]


@dataclass(frozen=True)
class Curve:
    """After `steps[i]` steps, for which `tokens[i]` tokens were sampled, `pass_rates[i]` of answers to held-out tasks were right."""

    steps: list[int]
    tokens: list[int]
    pass_rates: list[float]


def learn(arm: str, seed: int, steps: int, measure_every: int, cache: Path) -> Curve:
    """Train from the base model, with prompts and chance of this seed."""
    begun, recipe = start_of(ARMS["default"], BASE, cache), RECIPES[arm]
    torch.manual_seed(seed)
    learner = Learner(begun.folder, recipe, seed=seed)
    model = AutoModelForCausalLM.from_pretrained(begun.folder, dtype="float32").eval()
    answers = Answers(model, AutoTokenizer.from_pretrained(begun.folder), ARMS["default"])
    chance, tokens, curve = random.Random(f"vineppo {seed}"), 0, Curve([], [], [])
    for step in range(steps + 1):
        answers.model.load_state_dict(learner.weights())
        if step % measure_every == 0 or step == steps:
            curve.steps.append(step)
            curve.tokens.append(tokens)
            curve.pass_rates.append(pass_rate(answers, begun.held_out, seed))
            print(f"  {arm} {seed}, step {step}: {curve.pass_rates[-1]:.3f} right, {tokens} tokens", flush=True)
        if step < steps:
            groups, spent = sampled(answers, begun, recipe, chance, seed * 10_000 + step)
            learner.learn_rows(groups, step)
            tokens += spent
    return curve


def sampled(
    answers: Answers, begun: Start, recipe: Recipe, chance: random.Random, seed: int
) -> tuple[list[RolloutGroup], int]:
    """The groups that a step is trained on, and how many tokens workers would have sampled for them."""
    size, kept, drawn = recipe.group_size, [], []
    for attempt in range(MOST_ROUNDS):
        asked = [
            (chance.choice(begun.tasks), chance.choice(TARGETS))
            for _ in range(round(SPARE_GROUPS * recipe.prompts_per_step))
        ]
        rows = answers.draw([one for one in asked for _ in range(size)], 0, seed + 1000 * attempt)
        groups = [(asked[number], rows[number * size :][:size]) for number in range(len(asked))]
        drawn += groups
        kept += [group for group in groups if carries_signal(group[1])]
        if len(kept) >= recipe.prompts_per_step:
            break
    used = kept[: recipe.prompts_per_step] or drawn[: recipe.prompts_per_step]
    spent = sum(len(row.completion) for _, rows in drawn for row in rows)
    samples = [[sample_of(row) for row in rows] for _, rows in used]
    if recipe.vine is None:
        return [RolloutGroup(each) for each in samples], spent
    estimates, length = estimated(answers, used, recipe.vine, seed)
    found = [
        RolloutGroup(
            [replace(each, estimates=tuple(estimates[number * size + index])) for index, each in enumerate(group)]
        )
        for number, group in enumerate(samples)
    ]
    return found, spent + round(length * len(drawn) / len(used))


def estimated(
    answers: Answers, groups: Sequence[tuple[Asked, Sequence[Drawn]]], settings: VineSettings, seed: int
) -> tuple[list[list[ContinuationReward]], int]:
    """What came of the continuations of each completion of these groups, group after group, and the tokens that they have."""
    parents = [(asked, row) for asked, rows in groups for row in rows]
    places = list(continuations(len(parents), settings))
    prompts, prefixes = [], []
    for place in places:
        row = parents[place.parent][1]
        prefixes.append(row.completion[: settings.positions(len(row.completion))[place.boundary - 1]])
        prompts.append([*row.prompt, *prefixes[-1]])
    ends, environment = frozenset([answers.model.config.eos_token_id]), Arithmetic()
    found: list[list[ContinuationReward]] = [[] for _ in parents]
    endings = sample(answers.model, prompts, answers.arm.max_completion, seed + 500_000)
    for place, prefix, ending in zip(places, prefixes, endings, strict=True):
        (task, target), answer = parents[place.parent][0], [*prefix, *ending][: answers.arm.max_completion]
        scored = environment.score(task, completion_text(answers.tokenizer, answer, ends))
        reward = total_reward(
            scored.task_reward if isinstance(scored, Score) else None, len(answer), target, answers.arm.lengths
        )
        found[place.parent].append(
            ContinuationReward(place.boundary, len(prefix), float(reward.reward or 0.0), len(answer))
        )
    length = sum(min(len(each), answers.arm.max_completion) for each in endings)
    return found, length


def pass_rate(answers: Answers, tasks: Sequence[Task], seed: int) -> float:
    """pass@1 at temperature 1, one answer a task, the same chance each time."""
    rows = answers.draw([(task, TARGETS[index % len(TARGETS)]) for index, task in enumerate(tasks)], 0, seed)
    return sum(row.reward.task_reward or 0.0 for row in rows) / len(rows)
