"""What an arm starts from: a base model of one seed and its task pools, made once and kept in the cache folder.

In: a seed and the arm's data. Out: a checkpoint folder, tasks to train on, tasks to measure on. Called by `simulator`.
"""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.reproduce.arms import MAX_LENGTH, TARGETS, WIDTH, Arm
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.tasks import Task
from shoal.environments.arithmetic import Arithmetic, operands
from shoal.environments.base import Score
from shoal.environments.generated_model import make_model, random_model
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import sample
from shoal.environments.slips import learners_addition
from shoal.environments.tokens import completion_text

PASS_RATE, PADDED_PASS_RATE = 0.3, 0.15
"""Padding makes the second column harder to work out: a warm start of 400 updates ends near 0.2."""
POOL, HELD_OUT = 512, 256
"""Tasks to draw prompts from; tasks that no arm trains on, one answer each: the standard error of a rate is 3 %."""
FILTER_SAMPLES = 8
FILTER_LOW, FILTER_HIGH = 0.125, 0.5
"""The paper keeps problems of whose 8 samples 12.5 % to 50 % are right (section 3.3.1)."""
MOST_PADDING = 2


@dataclass(frozen=True)
class Start:
    """`folder` is a Hugging Face checkpoint; `tasks` is what the arm draws prompts from."""

    folder: Path
    tasks: list[Task]
    held_out: list[Task]


def start_of(arm: Arm, seed: int, cache: Path) -> Start:
    """The start of an arm; what it needs is made first where the cache lacks it."""
    kinds = [arm.data if arm.data in ("padded", "untaught") else "", f"wide{arm.width}" if arm.width != WIDTH else ""]
    folder = cache / "-".join(["base", *filter(None, kinds), str(seed)])
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _make_base(arm, seed, partial)
        partial.rename(folder)
    tasks = Arithmetic().tasks(POOL + HELD_OUT, 1000 + seed)
    held_out, pool = tasks[:HELD_OUT], tasks[HELD_OUT:]
    if arm.data in ("mixed", "filtered"):
        pool = pool[: POOL // 2] + hard_tasks(POOL // 2, seed)
    if arm.data == "filtered":
        pool = offline_filter(folder, pool, seed, cache / f"filter-{seed}.json")
    return Start(folder, pool, held_out)


def _make_base(arm: Arm, seed: int, folder: Path) -> None:
    environment, longest = Arithmetic(), MAX_LENGTH + 32
    if arm.data == "untaught":
        tokenizer = train_tokenizer(environment.prompt(task, arm.targets[0]) for task in environment.tasks(8, seed))
        random_model(GeneratedModel(hidden_size=arm.width), tokenizer, longest).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return
    padded = arm.data == "padded"
    make_model(
        folder,
        environment,
        list(arm.targets),
        GeneratedModel(hidden_size=arm.width, warm_start_pass_rate=PADDED_PASS_RATE if padded else PASS_RATE),
        longest,
        seed,
        lambda step, loss, rate: None,
        write=(lambda task, chance, slips: [(padded_addition(*operands(task), chance), True)]) if padded else None,
    )


def padded_addition(left: int, right: int, chance: random.Random) -> str:
    """A learner's addition whose first column is written one to three times, whatever length was asked for."""
    first, comma, rest = learners_addition(left, right, chance).partition(",")
    return first + (comma + first.removeprefix("<")) * chance.randint(0, MOST_PADDING) + comma + rest


def hard_tasks(count: int, seed: int) -> list[Task]:
    """Additions of two three-digit numbers: the base model was taught two digits and never gets them right."""
    chance = random.Random(f"hard {seed}")
    pairs = sorted({(chance.randint(100, 999), chance.randint(100, 999)) for _ in range(2 * count)})
    return [
        Task(
            problem_id=f"add-{left}-{right}",
            task_type="arithmetic",
            prompt=f"{left}+{right}=",
            verification_info={"answer": str(left + right)},
        )
        for left, right in chance.sample(pairs, count)
    ]


def offline_filter(folder: Path, tasks: Sequence[Task], seed: int, cache: Path) -> list[Task]:
    """Tasks of whose samples by the base model the paper's share is right; the rates are kept in `cache`."""
    if not cache.exists():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        tokenizer, environment = AutoTokenizer.from_pretrained(folder), Arithmetic()
        chance = random.Random(f"filter {seed}")
        asked = [task for task in tasks for _ in range(FILTER_SAMPLES)]
        prompts = [prompt_tokens(tokenizer, environment, task, chance.choice(TARGETS), None) for task in asked]
        right: dict[str, int] = {}
        ends = frozenset([model.config.eos_token_id])
        for task, tokens in zip(asked, sample(model, prompts, 32, seed), strict=True):
            scored = environment.score(task, completion_text(tokenizer, tokens, ends))
            won = isinstance(scored, Score) and scored.task_reward == 1.0
            right[task.problem_id] = right.get(task.problem_id, 0) + won
        cache.write_text(json.dumps({name: count / FILTER_SAMPLES for name, count in right.items()}))
    rates = json.loads(cache.read_text())
    return [task for task in tasks if FILTER_LOW <= rates[task.problem_id] <= FILTER_HIGH]
