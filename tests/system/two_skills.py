"""A tiny model that adds and writes small programs, each with slips: what a run on a mixture of both can teach.

Made as `shoal.environments.generated_model` makes the demo's, on the tasks of `arithmetic` and `code`. In: a folder. Out: a checkpoint there. Some
minutes on two cores.
"""

import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.tasks import Task
from shoal.environments import Environment
from shoal.environments.arithmetic import Arithmetic, operands
from shoal.environments.code import Code
from shoal.environments.generated_model import BATCH_SIZE, LEARNING_RATE, Lesson, _teach, random_model
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import pass_rate
from shoal.environments.slips import learners_addition

SLIPS = 0.6
"""Share of the taught answers that are wrong, of each kind."""
UPDATES, MEASURE_EVERY = 1600, 100
ENOUGH = 0.1
VOCABULARY = 1024
"""Phrases of the exercises become tokens: a prompt then has some 20."""
LONGEST = 128


def program_with_slips(task: Task, chance: random.Random) -> str:
    """The task's own program, or one with a neighbour of its parameter."""
    gold = Code().gold(task)
    if chance.random() >= SLIPS:
        return gold
    return re.sub(r"k = (\d+)", lambda found: f"k = {int(found.group(1)) + chance.choice((-1, 1))}", gold, count=1)


def make_two_skills(folder: Path, seed: int = 0) -> dict[str, float]:
    """Write the checkpoint and return how many held-out answers of each kind are right, sampled at temperature 1."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    sums, programs = Arithmetic().tasks(4200, seed), Code().tasks(4200, seed)
    texts: list[str] = []
    kinds: list[tuple[Environment, list[Task]]] = [(Arithmetic(), sums), (Code(), programs)]
    for environment, tasks in kinds:
        texts += [text for task in tasks[:1500] for text in (environment.prompt(task, None), environment.gold(task))]
    tokenizer = train_tokenizer(texts, VOCABULARY)
    model = random_model(GeneratedModel(), tokenizer, LONGEST)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    addition = partial(learners_addition, slips=SLIPS)
    rates = {"sums": 0.0, "programs": 0.0}
    for step in range(1, UPDATES + 1):
        lessons = [
            _lesson(tokenizer, Arithmetic(), each, addition(*operands(each), chance))
            for each in chance.choices(sums[200:], k=BATCH_SIZE // 2)
        ]
        lessons += [
            _lesson(tokenizer, Code(), each, program_with_slips(each, chance))
            for each in chance.choices(programs[200:], k=BATCH_SIZE // 2)
        ]
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / 50)
        loss = _teach(model, lessons, tokenizer.pad_token_id)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % MEASURE_EVERY == 0:
            rates = {
                "sums": _rate(model, tokenizer, Arithmetic(), sums[:100]),
                "programs": _rate(model, tokenizer, Code(), programs[:100]),
            }
            print(f"update {step}: loss {loss:.3f}, right {rates}", flush=True)
            if min(rates.values()) >= ENOUGH:
                break
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return rates


def _lesson(tokenizer: PreTrainedTokenizerFast, environment: Environment, task: Task, answer: str) -> Lesson:
    completion = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return Lesson(prompt_tokens(tokenizer, environment, task, None, None), completion)


def _rate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, environment: Environment, tasks: Sequence[Task]
) -> float:
    return pass_rate(model, tokenizer, environment, [(task, None) for task in tasks], seed=1)
