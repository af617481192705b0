r"""Mathematics: any problem with one final answer, which the model puts into a box.

`verification_info` of a task is `{"answer": "..."}` (also `ground_truth`, as INTELLECT-2's data call it), LaTeX or plain text. The reward is 1 when
the answer of the completion says the same (`shoal.rewards.math`), else 0; when that cannot be decided in bounded time the row is unscorable. Tasks
come from a data set (`datasets`); asked for tasks itself, the environment makes small ones of every kind of answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.rewards.cpu_time import Took
from shoal.rewards.gold import gold_flaw
from shoal.rewards.math import Undecided, final_answer, shared_judge

INSTRUCTION = r"Put the final answer into \boxed{}."
MOST_TASKS = 100_000
"""The generated kinds have a few million different problems together; this many are drawn without looking for long."""


class Math:
    """See the module's page."""

    name = "math"
    version = "1"
    sources = (
        "shoal.rewards.math", "shoal.rewards.boxes", "shoal.rewards.gold", "shoal.rewards.gold_proof", "shoal.rewards.judging",
        "shoal.rewards.cpu_time", "shoal.rewards.parent", "shoal.rewards.sandbox.inside",
    )  # fmt: skip
    requires = ("math-verify", "latex2sympy2-extended", "antlr4-python3-runtime", "sympy", "mpmath")
    extra = "rewards"
    judged_apart = True

    def tasks(self, count: int, seed: int) -> list[Task]:
        """Small problems of every kind in turn, without repeats."""
        if not 1 <= count <= MOST_TASKS:
            raise ValueError(f"math: {count} tasks requested; allowed: 1 to {MOST_TASKS}, or tasks of a data set")
        chance = random.Random(seed)
        made: dict[str, Task] = {}
        number = 0
        while len(made) < count:
            kind, make = KINDS[number % len(KINDS)]
            number += 1
            question, answer = make(chance)
            if question not in made:
                made[question] = Task(
                    problem_id=f"{kind}-{len(made)}",
                    task_type="math",
                    prompt=question,
                    verification_info={"answer": answer},
                    metadata={"kind": kind},
                )
        return list(made.values())

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The problem, where to put the answer, the request for a length, and an empty line."""
        return f"{problem_text(task)}\n{INSTRUCTION}{length_suffix(target_length)}\n\n"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 when the final answer is the task's, 0 when it is another or there is none."""
        gold = gold_answer(task)
        if gold is None:
            return Unscorable(
                f"task {task.problem_id}: verification_info.answer is missing; allowed: a text or a number"
            )
        answer = final_answer(completion)
        if answer is None:
            return Score(0.0, "there is no final answer, neither in a box nor in words")
        took = Took()
        found = shared_judge().equal(gold, answer, took)
        if isinstance(found, Undecided):
            return Unscorable(f"task {task.problem_id}: {found.reason}", took.seconds)
        return Score(float(found.equal), found.detail, took.seconds)

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether there is a final answer, in a box or said."""
        return final_answer(completion) is not None

    def gold(self, task: Task) -> str:
        """The answer in a box."""
        return rf"The answer is \boxed{{{gold_answer(task)}}}."

    def broken(self, task: Task) -> str:
        """Another answer in a box, one that no problem has."""
        return r"The answer is \boxed{-987654321}."

    def flaw(self, task: Task) -> str | None:
        """Why the answer cannot be judged, by value: an answer that is only a text would make right answers in other words unscorable."""
        gold = gold_answer(task)
        return "there is no gold answer" if gold is None else gold_flaw(shared_judge(), gold)

    def problems(self) -> list[str]:
        """Software that this machine lacks."""
        wanted = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy")
        missing = [name for name in wanted if find_spec(name) is None]
        return [f"{name} cannot be imported; install the extra `rewards` of shoal-rl" for name in missing]


def problem_text(task: Task) -> str:
    """The prompt of a task as plain text: chat messages one after another."""
    if isinstance(task.prompt, str):
        return task.prompt
    return "\n\n".join(message.content for message in task.prompt)


def gold_answer(task: Task) -> str | None:
    """The answer that a task asks for, None when it has none."""
    for name in ("answer", "ground_truth"):
        value = task.verification_info.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return None


def _latex(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _sum_of_fractions(chance: random.Random) -> tuple[str, str]:
    left, right = (Fraction(chance.randint(1, 30), chance.randint(2, 30)) for _ in range(2))
    return f"What is {left} + {right}?", _latex(left + right)


def _linear_equation(chance: random.Random) -> tuple[str, str]:
    factor, root, rest = (
        chance.randint(2, 12),
        Fraction(chance.randint(-40, 40), chance.randint(1, 4)),
        chance.randint(-30, 30),
    )
    return f"Solve for x: {factor}x + ({rest}) = {factor * root + rest}.", f"x={_latex(root)}"


def _both_roots(chance: random.Random) -> tuple[str, str]:
    one, other = sorted(chance.sample(range(-15, 16), 2))
    return f"Give the set of all x with x^2 + ({-one - other})x + ({one * other}) = 0.", rf"\{{{one},{other}\}}"


def _interval(chance: random.Random) -> tuple[str, str]:
    low = chance.randint(-50, 50)
    high = low + chance.randint(1, 50)
    return f"Write as an interval: all x that are at least {low} and less than {high}.", f"[{low},{high})"


def _square_root(chance: random.Random) -> tuple[str, str]:
    inside, factor = chance.choice((2, 3, 5, 6, 7, 10)), chance.randint(2, 30)
    return rf"Simplify \sqrt{{{inside * factor * factor}}}.", rf"{factor}\sqrt{{{inside}}}"


def _length(chance: random.Random) -> tuple[str, str]:
    metres, centimetres = chance.randint(1, 200), chance.randint(1, 99)
    return f"How long are {metres} m and {centimetres} cm together?", rf"{100 * metres + centimetres}\text{{ cm}}"


def _divisor(chance: random.Random) -> tuple[str, str]:
    common = chance.randint(2, 40)
    left, right = common * chance.randint(2, 50), common * chance.randint(2, 50)
    return f"What is the greatest common divisor of {left} and {right}?", str(math.gcd(left, right))


KINDS: tuple[tuple[str, Callable[[random.Random], tuple[str, str]]], ...] = (
    ("fractions", _sum_of_fractions),
    ("equation", _linear_equation),
    ("roots", _both_roots),
    ("interval", _interval),
    ("root", _square_root),
    ("length", _length),
    ("divisor", _divisor),
)
