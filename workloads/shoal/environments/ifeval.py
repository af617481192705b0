"""Instruction following: answers whose form a program can check, as in IFEval (arXiv:2311.07911).

`verification_info` of a task is `{"instructions": [{"id": "punctuation:no_comma", "kwargs": {}}, ...]}`, with the ids and arguments of the benchmark
(`instruction_checks.CHECKS`). Reward 1 when every instruction is followed, else 0: the benchmark's strict accuracy by prompt. What stands before
`</think>` is no part of the answer. Tasks come from a data set (layout `ifeval`); asked for tasks itself, the environment makes small ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.environments.instruction_checks import CHECKS, BadArguments
from shoal.environments.math import problem_text

TOPICS = ("rivers", "bridges", "bread", "maps", "clocks", "bees", "glass", "libraries", "tides", "violins")
MOST_TASKS = 500


class IfEval:
    """See the module's page."""

    name = "ifeval"
    version = "1"
    sources = (
        "shoal.environments.instruction_checks",
        "shoal.environments.languages",
        "shoal.environments.math",
    )

    def tasks(self, count: int, seed: int) -> list[Task]:
        """Small requests, each with one instruction, in an order that the seed decides."""
        if not 1 <= count <= MOST_TASKS:
            raise ValueError(f"ifeval: {count} tasks requested; allowed: 1 to {MOST_TASKS}, or tasks of a data set")
        places = [(number, topic, size) for number in range(len(KINDS)) for topic in TOPICS for size in range(1, 11)]
        random.Random(seed).shuffle(places)
        return [_made(*place) for place in places[:count]]

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The request, the request for a length, and an empty line."""
        return f"{problem_text(task)}{length_suffix(target_length)}\n\n"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 when every instruction is followed. Instructions that are not known are an error, not an answer's fault."""
        answer = completion.rpartition("</think>")[2].strip()
        instructions = task.verification_info.get("instructions")
        if not isinstance(instructions, list) or not instructions:
            return Unscorable(f"task {task.problem_id}: verification_info.instructions is missing")
        broken = []
        for each in instructions:
            name = each.get("id") if isinstance(each, dict) else None
            if name not in CHECKS:
                return Unscorable(f"task {task.problem_id}: instruction {name!r:.60} is not one of {len(CHECKS)} known")
            try:
                followed = bool(answer) and CHECKS[name](each.get("kwargs") or {}, answer)
            except BadArguments as error:
                return Unscorable(f"task {task.problem_id}: {name}: {error}")
            if not followed:
                broken.append(name)
        if broken:
            return Score(0.0, f"not followed: {', '.join(broken)}")
        return Score(1.0, f"all {len(instructions)} instructions are followed")

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether anything follows the thoughts."""
        return bool(completion.rpartition("</think>")[2].strip())

    def gold(self, task: Task) -> str:
        """An answer that a task brings along; ValueError when it brings none, as those of data sets."""
        found = task.metadata.get("gold")
        if not isinstance(found, str):
            raise ValueError(f"task {task.problem_id}: metadata.gold is missing, so there is no gold answer")
        return found

    def broken(self, task: Task) -> str:
        """No answer at all."""
        return "</think>"


Kind = tuple[str, Callable[[str, int], tuple[str, dict[str, Any], str]]]

KINDS: tuple[Kind, ...] = (
    (
        "detectable_format:multiple_sections",
        lambda topic, n: (
            f"Write about {topic} in at least {n} sections, which begin with Part 1 and so on.",
            {"section_spliter": "Part", "num_sections": n},
            "".join(f"Part {place}: {topic}\n" for place in range(1, n + 1)),
        ),
    ),
    (
        "detectable_format:number_bullet_lists",
        lambda topic, n: (f"List exactly {n} points about {topic}, each with `* `.", {"num_bullets": n}, f"* {topic}\n" * n),
    ),
    (
        "keywords:frequency",
        lambda topic, n: (
            f"Say something that has the word {topic} at least {n} times.",
            {"keyword": topic, "frequency": n, "relation": "at least"},
            f"{topic} " * n,
        ),
    ),
    (
        "startend:end_checker",
        lambda topic, n: (
            f"Write about {topic} and end with: That is all about {n}.",
            {"end_phrase": f"That is all about {n}."},
            f"About {topic}. That is all about {n}.",
        ),
    ),
    (
        "length_constraints:number_words",
        lambda topic, n: (
            f"Write at least {10 * n} words about {topic}.",
            {"num_words": 10 * n, "relation": "at least"},
            f"{topic} " * (10 * n),
        ),
    ),
)  # fmt: skip


def _made(number: int, topic: str, size: int) -> Task:
    name, make = KINDS[number]
    text, arguments, gold = make(topic, size)
    return Task(
        problem_id=f"{name.replace(':', '-')}-{topic}-{size}",
        task_type="ifeval",
        prompt=text,
        verification_info={"instructions": [{"id": name, "kwargs": arguments}]},
        metadata={"gold": gold},
    )
