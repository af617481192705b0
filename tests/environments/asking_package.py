"""Environments that use Shoal's judges as those of Shoal do, and one that asks its parent for what it may not."""

import os
import threading
import time
import urllib.request
from collections.abc import Sequence

from shoal.contracts.tasks import Task
from shoal.environments import Score
from shoal.environments.base import length_suffix
from shoal.environments.code import Code
from shoal.environments.math import Math
from shoal.environments.turns import TURN_END, Answers, FunctionCall, ToolAnswer
from shoal.rewards import parent
from shoal.rewards.math import shared_judge
from shoal.rewards.sandbox import Limits, Program, shared_pool

ANSWERS = 3


class TheirMath(Math):
    name = "their-math"


class TheirCode(Code):
    name = "their-code"


def later() -> None:
    def ask() -> None:
        time.sleep(0.05)
        parent.write_frame(ANSWERS, b'{"judge": [["x+1", "1+x"]]}', parent.CALL)

    threading.Thread(target=ask).start()


def from_another_thread() -> None:
    threading.Thread(target=lambda: (time.sleep(0.05), shared_judge().equal("x+1", "1+x"))).start()


ATTACKS = {
    "flood": lambda: [shared_judge().equal(f"x+{each}", f"{each}+x") for each in range(10_000)],
    "flood of programs": lambda: shared_pool().run_all([Program("print(1)")] * 10_000),
    "too long": lambda: os.write(ANSWERS, ((1 << 30) | parent.CALL).to_bytes(4, "big")),
    "malformed": lambda: parent.write_frame(ANSWERS, b'{"run": [{"source": 7}]}', parent.CALL),
    "later": later,
    "from another thread": from_another_thread,
    "large": lambda: shared_pool().run(Program("print(1)", limits=Limits(memory_bytes=1 << 30))),
    "run": lambda: shared_pool().run(Program("print(input())", stdin=b"7\n")).stdout.decode(),
    "spin after": lambda: spin(shared_pool().run(Program("sum(range(10**7))"))),
    "wait": lambda: shared_pool().run(Program("import time\ntime.sleep(3)\nprint(7)")).stdout.decode(),
}


def spin(_: object) -> None:
    while True:
        pass


class Asked:
    """What these share."""

    def tasks(self, count: int, seed: int) -> list[Task]:
        return [Task(problem_id=f"task-{each}", task_type="asked", prompt="?") for each in range(count)]

    def prompt(self, task: Task, target_length: int | None) -> str:
        return "?" + length_suffix(target_length)

    def gold(self, task: Task) -> str:
        return TURN_END.join(["yes"] * 4)


class ByTurn(Asked):
    """Each turn that says `yes` earns a quarter; without turns to reward where the text asks for it."""

    name, version, rewards_turns = "by-turn", "1", True
    functions = ({"name": "look", "description": "", "parameters": {}},)
    most_turns, longest_turn = 4, None

    def answers(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers:
        return Answers([[ToolAnswer("seen") for _ in turn] for turn in turns])

    def score(self, task: Task, completion: str) -> Score:
        earned = [0.25 * (turn == "yes") for turn in completion.split(TURN_END)]
        return Score(sum(earned), turn_rewards=(float("nan"),) if "nan" in completion else tuple(earned))


class Judged(Asked):
    """A judge who is never of the same mind."""

    name, version, repeatable = "judged", "1", False

    def score(self, task: Task, completion: str) -> Score:
        return Score(int.from_bytes(os.urandom(2), "big") / 65536)


class Part:
    version = "1"

    def __init__(self, runs_programs: bool) -> None:
        self.name, self.runs_programs = "runs" if runs_programs else "tells", runs_programs


class Asking:
    """Tasks of the type `runs` run programs, others may not."""

    name, version, runs_programs = "asking", "2", True

    def part_of(self, task: Task) -> Part:
        return {"runs": Part(True), "tells": Part(False)}[task.task_type]

    def tasks(self, count: int, seed: int) -> list[Task]:
        try:
            urllib.request.urlopen("http://127.0.0.1:9/tasks")
        except OSError as error:
            raise RuntimeError("the hub is away") from error

    def prompt(self, task: Task, target_length: int | None) -> str:
        return "?"

    def score(self, task: Task, completion: str) -> Score:
        return Score(1.0, str(ATTACKS[completion]()) if completion in ATTACKS else "")

    def gold(self, task: Task) -> str:
        return "right"
