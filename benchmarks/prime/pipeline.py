"""The three stages in one process, with the trainer's own functions: what each makes is kept in a cache folder and made once.

In: a seed, a cache folder. Out: checkpoints (base, strong policy, base after SFT) and the curve of reinforcement learning from one of them. The
system around the trainer is left out, as in `benchmarks.reproduce`. Called by `__main__`.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.reproduce.arms import ARMS, MAX_LENGTH, TARGETS
from benchmarks.reproduce.base import Start, start_of
from benchmarks.reproduce.ours import Drawn
from benchmarks.reproduce.simulator import Answers
from shoal.contracts.algorithm import Algorithm, Prime
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.recipe import Recipe
from shoal.contracts.sft import SftDataset, SftSettings
from shoal.contracts.tasks import Task
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_model import make_model
from shoal.training.batches import plan_step
from shoal.training.extensions.prime.extension import outcome_advantages
from shoal.training.extensions.prime.reward_model import RewardModel, outcomes_of
from shoal.training.model import load_policy, load_reference
from shoal.training.optimizer import Optimizer
from shoal.training.rollouts import RolloutGroup, Sample
from shoal.training.sft.method import batch_of, learn
from shoal.training.update import plan_logprobs, train

STRONG_PASS_RATE, STRONG_SLIPS = 0.8, 0.1
"""Of the policy that writes the traces: the same model, taught longer. The plain base is right in 0.3 of its answers."""
TRACED_TASKS, TRACES_PER_TASK, LONGEST_TRACE = 256, 2, 28
"""Traces longer than that are left out, right or not."""
SFT_EPOCHS, SFT_BATCH_ROWS, SFT_LEARNING_RATE = 2, 32, 1e-3
SETTINGS = Prime(learning_rate=1e-4)
"""The paper's 1e-6 is for seven billion weights; this model learns at rates some hundred times as high, the policy's too."""
RECIPE = Recipe(
    algorithm=Algorithm(prime=SETTINGS),
    prompts_per_step=24,
    optimizer_steps=2,
    learning_rate=1.5e-4,
    warmup_steps=5,
    max_sequence_length=MAX_LENGTH,
    pack_length=512,
)
MEASURE_EVERY_STEPS = 4
SPARE_GROUPS = 1.5
MOST_ROUNDS = 4


@dataclass(frozen=True)
class Curve:
    """`steps[i]` RL steps gave `pass_rates[i]` on tasks that nothing was trained on. Seconds are of CPU, of all steps together."""

    steps: list[int]
    pass_rates: list[float]
    reward_model_seconds: float
    other_seconds: float


def start(seed: int, cache: Path) -> Start:
    """The plain base with its tasks."""
    return start_of(ARMS["default"], seed, cache)


def answers_of(folder: Path) -> Answers:
    """A sampler of the checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    return Answers(model, AutoTokenizer.from_pretrained(folder), ARMS["default"])


def warm_base(seed: int, cache: Path) -> Path:
    """The plain base after SFT on the strong policy's traces."""
    folder = cache / f"warm-{seed}"
    if not folder.is_dir():
        begun = start(seed, cache)
        strong = _made(cache / f"strong-{seed}", lambda partial: _make_strong(partial, seed))
        rows = traces(answers_of(strong), begun.tasks[:TRACED_TASKS], seed)
        _made(folder, lambda partial: _fine_tune(begun.folder, rows, seed, partial))
    return folder


def traces(strong: Answers, tasks: Sequence[Task], seed: int) -> list[Drawn]:
    """What the strong policy answers, filtered by correctness and length."""
    asked = [(task, TARGETS[index % len(TARGETS)]) for index, task in enumerate(tasks) for _ in range(TRACES_PER_TASK)]
    drawn = strong.draw(asked, 0, seed)
    return [one for one in drawn if one.reward.task_reward == 1.0 and len(one.completion) <= LONGEST_TRACE]


def reinforce(folder: Path, begun: Start, seed: int, target: float, most_steps: int) -> Curve:
    """PRIME from the checkpoint until the target is reached or the steps are spent; synchronous, so that steps alone are compared."""
    torch.manual_seed(seed)
    policy, reference, prm = load_policy(folder), load_reference(folder), load_policy(folder)
    optimizer, process = Optimizer(policy.parameters(), RECIPE), RewardModel(prm, RECIPE, SETTINGS)
    answers, chance = answers_of(folder), random.Random(f"prime {seed}")
    steps: list[int] = []
    rates: list[float] = []
    seconds = {"reward_model": 0.0, "other": 0.0}
    for step in range(most_steps + 1):
        answers.model.load_state_dict(dict(policy.full_weights()))
        if step % MEASURE_EVERY_STEPS == 0 or step == most_steps:
            steps.append(step)
            rates.append(pass_rate(answers, begun.held_out, seed))
            print(f"  step {step}: {rates[-1]:.3f} right", flush=True)
            if rates[-1] >= target or step == most_steps:
                break
        rows = sampled(answers, begun.tasks, chance, seed * 10_000 + step)
        plan = plan_step(rows, RECIPE, seed=seed, step=step, advantages=outcome_advantages)
        clock = time.process_time()
        old = plan_logprobs(policy, plan, _nothing, begin=1)
        base = plan_logprobs(reference, plan, _nothing)
        seconds["other"] += time.process_time() - clock
        clock = time.process_time()
        outcomes = outcomes_of(rows)
        plan = process.complete(plan, base, outcomes, _nothing)
        process.learn(plan, base, outcomes, _nothing)
        seconds["reward_model"] += time.process_time() - clock
        clock = time.process_time()
        train(policy, optimizer, plan, old, base, RECIPE, _nothing)
        seconds["other"] += time.process_time() - clock
    return Curve(steps, rates, seconds["reward_model"], seconds["other"])


def sampled(answers: Answers, tasks: Sequence[Task], chance: random.Random, seed: int) -> list[RolloutGroup]:
    """Groups that PRIME's accuracy filter keeps; sampling goes on until there are enough."""
    size, kept = RECIPE.group_size, []
    for attempt in range(MOST_ROUNDS):
        asked = [
            (chance.choice(tasks), chance.choice(TARGETS)) for _ in range(round(SPARE_GROUPS * RECIPE.prompts_per_step))
        ]
        rows = answers.draw([one for one in asked for _ in range(size)], 0, seed + 1000 * attempt)
        groups = [rows[first : first + size] for first in range(0, len(rows), size)]
        kept += [group for group in groups if SETTINGS.keeps([one.reward.task_reward or 0.0 for one in group])]
        if len(kept) >= RECIPE.prompts_per_step:
            break
    if not kept:
        raise RuntimeError(
            f"no group of {MOST_ROUNDS} rounds is of middling accuracy; the policy is always right or never"
        )
    return [RolloutGroup([_sample(one) for one in group]) for group in kept[: RECIPE.prompts_per_step]]


def pass_rate(answers: Answers, tasks: Sequence[Task], seed: int) -> float:
    """pass@1 at temperature 1, one answer a task, the same chance each time."""
    rows = answers.draw([(task, TARGETS[index % len(TARGETS)]) for index, task in enumerate(tasks)], 0, seed)
    return float(np.mean([one.reward.task_reward or 0.0 for one in rows]))


def write_json(path: Path, value: object) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def _make_strong(folder: Path, seed: int) -> None:
    made = GeneratedModel(
        warm_start_pass_rate=STRONG_PASS_RATE, warm_start_slips=STRONG_SLIPS, warm_start_max_steps=1000
    )
    make_model(folder, Arithmetic(), list(TARGETS), made, MAX_LENGTH + 32, seed, _tell)


def _tell(step: int, loss: float, rate: float) -> None:
    print(f"  strong policy, update {step}: loss {loss:.3f}, {rate:.3f} right", flush=True)


def _fine_tune(base: Path, rows: Sequence[Drawn], seed: int, folder: Path) -> None:
    """Completions only, packed, as a run of mode SFT does it."""
    settings = SftSettings(dataset=SftDataset(run="traces"), learning_rate=SFT_LEARNING_RATE, warmup_steps=4)
    policy = load_policy(base)
    optimizer, order = Optimizer(policy.parameters(), settings), np.random.default_rng(seed)
    samples = [_sample(one) for one in rows]
    for _ in range(SFT_EPOCHS):
        shuffled = order.permutation(len(samples))
        parts = np.array_split(shuffled, max(1, len(shuffled) // SFT_BATCH_ROWS))
        batches = (batch_of([samples[index] for index in part], 512) for part in parts)
        learn(policy, optimizer, batches, 512, _nothing)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    model.load_state_dict(dict(policy.full_weights()))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made first if it is not there; half-made ones are never taken for it."""
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        make(partial)
        partial.rename(folder)
    return folder


def _sample(drawn: Drawn) -> Sample:
    count = len(drawn.completion)
    return Sample(
        name="simulated",
        tokens=np.array([*drawn.prompt, *drawn.completion], dtype=np.int64),
        prompt_length=len(drawn.prompt),
        mask=np.ones(count, dtype=np.bool_),
        logprobs=np.zeros(count, dtype=np.float32),
        temperature=1.0,
        policy_version=0,
        task_reward=float(drawn.reward.task_reward or 0.0),
        length_penalty=float(drawn.reward.length_penalty or 0.0),
        reward=float(drawn.reward.reward or 0.0),
    )


def _nothing() -> None:
    """Called after every micro-batch; there is nobody to tell."""
