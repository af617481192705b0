"""The task of the real model: which of three numbers is the largest. Out: an environment. Called by `base` and `simulator`.

SmolLM2-135M-Instruct is right about every fifth time at temperature 1, once it has seen an example; of its additions none of 64 was right. A prompt
has 50 tokens and an answer three, so that an arm takes half an hour of a core.
"""

import random
from collections.abc import Callable, Sequence
from math import prod

from shoal.contracts.tasks import Task
from shoal.environments.base import Score

EXAMPLE = (12, 57, 33)
SMALLEST, LARGEST = 10, 99
KINDS: dict[str, Callable[[Sequence[int]], int]] = {"Largest": max, "Product": prod}
"""What is asked of the three numbers. Most products have more digits than an answer has tokens, and the model multiplies none."""


class Largest:
    """See the module's page. `verification_info` of a task is `{"answer": "57"}`. The prompt is the model's chat template, written out."""

    name = "largest"
    version = "1"

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` different triples of two-digit numbers, in the order in which chance draws them."""
        return drawn("Largest", count, f"{seed}")

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The example's question and answer, and the task's question; no length is asked for."""
        return str(task.prompt)

    def gold(self, task: Task) -> str:
        """The number."""
        return str(task.verification_info["answer"])

    def score(self, task: Task, completion: str) -> Score:
        """1 when the completion is the number and nothing else, else 0."""
        right = completion == self.gold(task)
        return Score(float(right), "the number is right" if right else f"the answer is {completion[:32]!r}")


def drawn(kind: str, count: int, seed: str) -> list[Task]:
    """`count` tasks of a kind, all different."""
    chance, found = random.Random(f"{kind} {seed}"), dict[tuple[int, ...], Task]()
    while len(found) < count:
        numbers = tuple(chance.sample(range(SMALLEST, LARGEST + 1), 3))
        found[numbers] = _task(kind, numbers)
    return list(found.values())


def _task(kind: str, numbers: Sequence[int]) -> Task:
    turns = [
        ("user", _question(kind, EXAMPLE)),
        ("assistant", _answer(kind, EXAMPLE)),
        ("user", _question(kind, numbers)),
    ]
    return Task(
        problem_id=f"{kind.lower()}-{'-'.join(map(str, numbers))}",
        task_type="largest",
        prompt="".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n",
        verification_info={"answer": _answer(kind, numbers)},
    )


def _question(kind: str, numbers: Sequence[int]) -> str:
    return f"{kind}: {', '.join(map(str, numbers))}?"


def _answer(kind: str, numbers: Sequence[int]) -> str:
    return str(KINDS[kind](numbers))
