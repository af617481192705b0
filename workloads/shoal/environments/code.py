"""Programming: Python programs against tests, all of which must pass.

`verification_info` of a task is `{"language": "python", "test_cases": [...]}`, the layout of SYNTHETIC-1 and INTELLECT-2's data. A test is
`{"type": "stdin_stdout", "input": text, "output": text}` or `{"type": "function_call", "fn_name": "name" or "Class.method", "input": [arguments],
"output": value}`. `time_limit_seconds` (CPU, default 4) may be given. The program is the last fenced block of the completion. Each test runs in a
sandbox of its own, which learns the input and never the output: that is compared here. Reward 1 or 0, never partial.
"""

from __future__ import annotations

import json
import math
import random
import re
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.environments.code_tasks import make_task
from shoal.environments.math import problem_text
from shoal.rewards.parent import line
from shoal.rewards.sandbox import Call, Limits, NoIsolation, Outcome, Program, SandboxFailed, choose, shared_pool, trial

INSTRUCTION = "Write the program in Python, in one block that begins with ```python and ends with ```."
TIME_LIMIT_SECONDS = 4.0
BAND = 2.0
"""A right program that takes between the limit and this many times as long is unscorable: on another machine it might be in time, and two honest
machines must not disagree. What takes longer is wrong everywhere."""
WALL_SECONDS = 10.0
"""On top of the CPU time; a busy machine is not a reason for a zero."""
FLOAT_TOLERANCE = 1e-6
"""Relative, of floating-point numbers that a function returns."""
LONGEST_PROGRAM = 100_000
MOST_TESTS = 1000
PROVEN_TESTS = 3
"""Of a task, that its own solution must pass before the run: about 50 ms each, of 25,000 tasks an hour."""
MOST_TASKS = 10_000

_BLOCK = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL)


class Code:
    """See the module's page."""

    name = "code"
    version = "1"
    runs_programs = True
    sources = (
        "shoal.rewards.sandbox",
        "shoal.rewards.cpu_time",
        "shoal.rewards.parent",
        "shoal.environments.code_tasks",
        "shoal.environments.math",
    )

    def tasks(self, count: int, seed: int) -> list[Task]:
        """Small exercises, half of them programs and half functions; the same for the same seed."""
        if not 1 <= count <= MOST_TASKS:
            raise ValueError(f"code: {count} tasks requested; allowed: 1 to {MOST_TASKS}, or tasks of a data set")
        chance = random.Random(seed)
        return [make_task(number, chance) for number in range(count)]

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The problem, the form of the answer, the request for a length, and an empty line."""
        return f"{problem_text(task)}\n{INSTRUCTION}{length_suffix(target_length)}\n\n"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 when every test passes. Tests run a few at a time until one fails."""
        try:
            tests, seconds = _read_tests(task)
        except ValueError as error:
            return Unscorable(f"task {task.problem_id}: {error}")
        source = program_of(completion)
        if source is None:
            return Score(
                0.0,
                f"the answer has no program: a block of at most {LONGEST_PROGRAM} characters between ```python and ```",
            )
        limits = Limits(cpu_seconds=math.ceil(seconds * BAND), wall_seconds=seconds * BAND + WALL_SECONDS)
        used = 0.0
        try:
            pool = shared_pool()
            for first in range(0, len(tests), pool.slots):
                some = tests[first : first + pool.slots]
                outcomes = pool.run_all([_program(source, test, limits) for test in some])
                used += sum(outcome.cpu_seconds for outcome in outcomes)
                for number, (test, outcome) in enumerate(zip(some, outcomes, strict=True), first + 1):
                    problem = _problem(test, outcome)
                    if problem is not None:
                        return Score(0.0, f"test {number} of {len(tests)}: {problem}", used)
                    if outcome.cpu_seconds > seconds:
                        return Unscorable(
                            f"task {task.problem_id}: test {number} passed after {outcome.cpu_seconds:.1f} s of CPU time, too close to the limit"
                            f" of {seconds:.1f} s to be judged the same everywhere",
                            used,
                        )
        except (SandboxFailed, NoIsolation) as error:
            return Unscorable(f"task {task.problem_id}: {error}", used, passing=True)
        return Score(1.0, f"all {len(tests)} tests pass", used)

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether there is a program."""
        return program_of(completion) is not None

    def gold(self, task: Task) -> str:
        """The solution that a task brings along; ValueError when it brings none (most data sets do not)."""
        solution = task.metadata.get("solution")
        if not isinstance(solution, str):
            raise ValueError(f"task {task.problem_id}: metadata.solution is missing, so there is no gold program")
        return f"```python\n{solution}\n```"

    def broken(self, task: Task) -> str:
        """A program that ends as well as any and answers nothing."""
        return "```python\nimport sys\nsys.exit(0)\n```"

    def flaw(self, task: Task) -> str | None:
        """Why the solution that a task brings along does not pass its first tests; ValueError when it brings none.

        Raises SandboxFailed where it could not be run.
        """
        completion = self.gold(task)
        info = task.verification_info | {"test_cases": _read_tests(task)[0][:PROVEN_TESTS]}
        found = self.score(task.model_copy(update={"verification_info": info}), completion)
        if isinstance(found, Unscorable):
            if found.passing:
                raise SandboxFailed(found.reason)
            return "its own solution takes longer than machines can agree on"
        return None if found.task_reward == 1.0 else "its own solution fails its tests"

    def problems(self) -> list[str]:
        """Software that this machine lacks: an isolation that works."""
        try:
            if line() is None:  # in a sandbox the parent runs programs
                choose(trial)
        except NoIsolation as error:
            return [str(error)]
        return []


def program_of(completion: str) -> str | None:
    """The last fenced block after the thoughts, None when there is none or it is too long."""
    blocks = _BLOCK.findall(completion.rpartition("</think>")[2])
    return blocks[-1] if blocks and len(blocks[-1]) <= LONGEST_PROGRAM else None


def _read_tests(task: Task) -> tuple[list[dict[str, Any]], float]:
    """Tests and time limit of a task; ValueError says which part is wrong."""
    info = task.verification_info
    if info.get("language", "python") != "python":
        raise ValueError(f"verification_info.language is {info['language']!r}; allowed: python")
    tests = info.get("test_cases")
    if not isinstance(tests, list) or not 1 <= len(tests) <= MOST_TESTS:
        raise ValueError(f"verification_info.test_cases has no tests or too many; allowed: 1 to {MOST_TESTS}")
    for number, test in enumerate(tests, 1):
        kind = test.get("type") if isinstance(test, dict) else None
        if kind == "stdin_stdout":
            right = isinstance(test.get("input"), str) and isinstance(test.get("output"), str)
        else:
            right = (
                kind == "function_call" and isinstance(test.get("fn_name"), str) and isinstance(test.get("input"), list)
            )
        if not right or "output" not in test:
            raise ValueError(
                f"test {number} is neither stdin_stdout with input and output (text) nor function_call with fn_name, input (list) and output"
            )
    seconds = info.get("time_limit_seconds", TIME_LIMIT_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 60:
        raise ValueError(f"verification_info.time_limit_seconds is {seconds!r}; allowed: more than 0, at most 60")
    return tests, float(seconds)


def _program(source: str, test: dict[str, Any], limits: Limits) -> Program:
    if test["type"] == "stdin_stdout":
        return Program(source, test["input"].encode(), limits=limits)
    return Program(source, call=Call(test["fn_name"], test["input"]), limits=limits)


def _problem(test: dict[str, Any], outcome: Outcome) -> str | None:
    """The fault of a program at a test, or None."""
    if not outcome.succeeded:
        return f"the program {outcome.reason()}"
    if test["type"] == "stdin_stdout":
        return None if same_output(outcome.stdout.decode(errors="replace"), test["output"]) else "other output"
    try:
        value = json.loads(outcome.stdout)
        return None if same_value(value, test["output"]) else "another value"
    except (ValueError, RecursionError):
        return "the program returned no value"


def same_output(given: str, wanted: str) -> bool:
    """Equal line by line; spaces at line ends and empty lines at the end do not count."""
    return _lines(given) == _lines(wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def same_value(given: object, wanted: object) -> bool:
    """Equal as JSON values: whole numbers and texts exactly, floating-point numbers to a relative 1e-6, no truth value equal to a number."""
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        if isinstance(given, int) and isinstance(wanted, int):
            return given == wanted
        try:
            return math.isclose(given, wanted, rel_tol=FLOAT_TOLERANCE, abs_tol=1e-9)
        except OverflowError:
            return False
    if isinstance(given, list) and isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(map(same_value, given, wanted))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(same_value(given[key], wanted[key]) for key in wanted)
    return type(given) is type(wanted) and given == wanted
