"""Small programming exercises with tests and a solution, for trying the code environment where there is no data set.

In: a number and a source of chance. Out: a task whose expected outputs were computed here, by the function beside each solution. Called by `code`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from shoal.contracts.tasks import Task

TESTS = 4
"""Enough that a program which answers one input by heart does not pass."""


@dataclass(frozen=True)
class Exercise:
    """A task on a list of whole numbers and a parameter k; the expected result; and an expression in Python that gives it."""

    text: str
    solve: Callable[[list[int], int], int | list[int]]
    expression: str


EXERCISES = (
    Exercise(
        "the sum of all values that are multiples of {k}",
        lambda v, k: sum(x for x in v if x % k == 0),
        "sum(x for x in v if x % k == 0)",
    ),
    Exercise("how many values are greater than {k}", lambda v, k: sum(x > k for x in v), "sum(x > k for x in v)"),
    Exercise(
        "the values in ascending order, each plus {k}",
        lambda v, k: [x + k for x in sorted(v)],
        "[x + k for x in sorted(v)]",
    ),
    Exercise(
        "the largest value minus the smallest, times {k}", lambda v, k: (max(v) - min(v)) * k, "(max(v) - min(v)) * k"
    ),
    Exercise("every {k}th value, beginning with the first", lambda v, k: v[::k], "v[::k]"),
    Exercise(
        "the different remainders on division by {k}, ascending",
        lambda v, k: sorted({x % k for x in v}),
        "sorted({x % k for x in v})",
    ),
    Exercise(
        "the sum of the squares of all values, modulo {k}",
        lambda v, k: sum(x * x for x in v) % k,
        "sum(x * x for x in v) % k",
    ),
)


def make_task(number: int, chance: random.Random) -> Task:
    """A task: even numbers read standard input, odd ones are a function `solve(values)`."""
    exercise = EXERCISES[chance.randrange(len(EXERCISES))]
    k = chance.randint(2, 9)
    inputs = [[chance.randint(-99, 99) for _ in range(chance.randint(3, 12))] for _ in range(TESTS)]
    what = exercise.text.format(k=k)
    if number % 2 == 0:
        text = f"Read whole numbers from one line of standard input and print {what}; several values on one line, with spaces between them."
        tests: list[dict[str, object]] = [
            {"type": "stdin_stdout", "input": _line(values), "output": _line(exercise.solve(values, k))}
            for values in inputs
        ]
        solution = (
            f"k = {k}\nv = list(map(int, input().split()))\nresult = {exercise.expression}\n"
            "print(*result) if isinstance(result, list) else print(result)"
        )
    else:
        text = f"Write a function solve(values) that takes a list of whole numbers and returns {what}."
        tests = [
            {"type": "function_call", "fn_name": "solve", "input": [values], "output": exercise.solve(values, k)}
            for values in inputs
        ]
        solution = f"def solve(v):\n    k = {k}\n    return {exercise.expression}"
    return Task(
        problem_id=f"exercise-{number}",
        task_type="code",
        prompt=text,
        verification_info={"language": "python", "test_cases": tests},
        metadata={"solution": solution},
    )


def _line(values: int | list[int]) -> str:
    return " ".join(map(str, values)) + "\n" if isinstance(values, list) else f"{values}\n"
