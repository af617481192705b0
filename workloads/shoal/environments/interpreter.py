"""Sums and counts that are too large for the head, and two functions: an exact calculator, and a Python interpreter with a memory over the turns.

The model ends a turn with `<tool_call>{"name": "python", "arguments": {"code": "..."}}</tool_call>`, or calls `calculate`, and gets the answers in
the next message (`turns`). What follows the last `Answer:` of its last turn is scored, strictly. `verification_info` of a task is
`{"answer": "..."}`.

All programs of an episode are cells of one interpreter. It runs them from the first in a sandbox used once, under a fixed clock and fixed random
numbers. Nothing else carries its memory. A worker runs the cells of earlier turns again with each turn, a validator those of an episode once. All
cells of an episode share `CPU_SECONDS`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.environments.exact_programs import is_exact
from shoal.environments.tool import ANSWER, CannotCalculate, calculate
from shoal.environments.turns import LONGEST_ANSWER, TURN_END, Answers, FunctionCall, ToolAnswer, last_turn
from shoal.rewards.sandbox import Limits, NoIsolation, Outcome, Program, SandboxFailed, choose, shared_pool, trial

MOST_TASKS = 100_000
CPU_SECONDS = 4
"""Of all cells of an episode together."""
SURE_SECONDS = 1.0
"""Cells that took less here end in time on every machine that could serve at all."""
LONGEST_CELL = 20_000
"""Characters."""
LIMITS = Limits(cpu_seconds=CPU_SECONDS, wall_seconds=20.0, memory_bytes=256 << 20, output_bytes=1 << 20)
STOPPED = {
    "cpu": f"the interpreter was stopped: its cells took more than {CPU_SECONDS} s",
    "wall": "the interpreter was stopped: it waited for too long",
    "output": "the interpreter was stopped: it printed too much",
    "files": "the interpreter was stopped: it wrote too much to files",
}
ENDED = "the interpreter has ended"
SILENT = "(nothing was printed)"
CELLS = (Path(__file__).with_name("interpreter_cells.py")).read_text()
"""The program that runs the cells. It is part of the digest (`sources`)."""


class Interpreter:
    """See the module's page; `turns` has the rules."""

    name = "interpreter"
    version = "1"
    sources = (
        "shoal.environments.turns",
        "shoal.environments.tool",
        "shoal.environments.exact_programs",
        "shoal.environments.interpreter_cells",
        "shoal.rewards.sandbox",
    )
    most_turns = 6
    longest_turn: int | None = None
    functions = (
        {
            "name": "calculate",
            "description": "Compute an expression of numbers with + - * / // % ** and brackets, exactly.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
        {
            "name": "python",
            "description": "Run Python code and get what it prints, and its last expression. Variables stay for later calls.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    )

    def tasks(self, count: int, seed: int) -> list[Task]:
        """Sums of products, remainders of powers and counts of multiples, in turn; without repeats."""
        if not 1 <= count <= MOST_TASKS:
            raise ValueError(f"interpreter: {count} tasks requested; allowed: 1 to {MOST_TASKS}")
        chance = random.Random(seed)
        made: dict[str, Task] = {}
        while len(made) < count:
            question, code = _question(len(made) % 3, chance)
            made[question] = Task(
                problem_id=f"interpreter-{len(made)}-{seed}",
                task_type="interpreter",
                prompt=question,
                verification_info={"answer": str(eval(code, {"__builtins__": {"sum": sum, "range": range}}))},  # noqa: S307 - written below
                metadata={"code": code},
            )
        return list(made.values())

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The question, and how to answer. The functions are listed beside it (`prompts`)."""
        return f"{task.prompt}\nEnd with `{ANSWER}` and the number.{length_suffix(target_length)}\n\n"

    def answers(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers | Unscorable:
        """See `turns.WithTurns`."""
        cells = [code for turn in turns for call in turn if call.name == "python" and (code := _code(call)) is not None]
        try:
            printed, seconds = run_cells(cells) if cells else ([], 0.0)
        except (SandboxFailed, NoIsolation) as error:
            return Unscorable(f"task {task.problem_id}: {error}", passing=True)
        outputs = iter(printed)
        return Answers([[_answer(call, outputs) for call in turn] for turn in turns], seconds)

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 when what follows the last `Answer:` of the last turn is exactly the number."""
        answer = task.verification_info.get("answer")
        if not isinstance(answer, str) or not answer:
            return Unscorable(
                f"task {task.problem_id}: verification_info.answer is {answer!r}; allowed: a number as text"
            )
        _, said, given = last_turn(completion).rpartition(ANSWER)
        if said and given.strip() == answer:
            return Score(1.0, "the answer is right")
        found = f"the answer is {given.strip()[:32]!r}, but the right one is {answer}"
        return Score(0.0, found if said else f"there is no {ANSWER!r} in the last turn")

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether something follows the last `Answer:` of the last turn."""
        _, said, given = last_turn(completion).rpartition(ANSWER)
        return bool(said and given.strip())

    def gold(self, task: Task) -> str:
        """What the model writes in an episode with one call."""
        call = json.dumps({"name": "python", "arguments": {"code": str(task.metadata["code"])}})
        return f"<tool_call>\n{call}\n</tool_call>{TURN_END}{ANSWER} {task.verification_info['answer']}"

    def broken(self, task: Task) -> str:
        """The same episode with another answer."""
        return f"{self.gold(task)}0"

    def problems(self) -> list[str]:
        """Software that this machine lacks: an isolation that works."""
        try:
            choose(trial)
        except NoIsolation as error:
            return [str(error)]
        return []


def run_cells(cells: Sequence[str]) -> tuple[list[ToolAnswer], float]:
    """What each cell prints, and the CPU seconds that all took. Raises SandboxFailed and NoIsolation.

    Exact programs neither wait nor end themselves. Where only these have run, a wait or a signal is this machine's fault: SandboxFailed, because
    another machine's answer to the cell would be sure.
    """
    outcome = shared_pool().run(Program(CELLS, stdin=json.dumps(list(cells)).encode(), limits=LIMITS))
    whole = outcome.succeeded and outcome.cpu_seconds < SURE_SECONDS
    printed = _printed(outcome)[: len(cells)]
    began = cells[: len(printed) + 1]
    if outcome.ended in ("wall", "signal") and len(printed) < len(cells) and all(map(is_exact, began)):
        raise SandboxFailed(
            f"the sandbox stopped a program that cannot wait and cannot be at fault: it {outcome.reason()}"
        )
    exact, found = whole, []
    for number, (text, fine) in enumerate(printed):
        exact = exact and fine and is_exact(cells[number])
        found.append(ToolAnswer(text or SILENT, exact))
    stopped = STOPPED.get(outcome.ended, ENDED)
    return [*found, *[ToolAnswer(f"error: {stopped}")] * (len(cells) - len(found))], outcome.cpu_seconds


def _printed(outcome: Outcome) -> list[tuple[str, bool]]:
    """Text of each cell that came to its end, and whether it ended without an error. Programs may write anything here, which is their own doing."""
    found = []
    for line in outcome.stdout.decode(errors="replace").splitlines():
        try:
            text, fine = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        if not isinstance(text, str) or not isinstance(fine, bool):
            break
        found.append((text[:LONGEST_ANSWER], fine))
    return found


def _code(call: FunctionCall) -> str | None:
    code = call.arguments.get("code")
    return code if isinstance(code, str) and len(code) <= LONGEST_CELL else None


def _answer(call: FunctionCall, outputs: object) -> ToolAnswer:
    if call.name == "python":
        if _code(call) is None:
            return ToolAnswer(f"error: code is no text of at most {LONGEST_CELL} characters", True)
        return next(outputs)  # type: ignore[call-overload,no-any-return]
    expression = call.arguments.get("expression")
    if not isinstance(expression, str):
        return ToolAnswer("error: expression is no text", True)
    try:
        return ToolAnswer(calculate(expression), True)
    except CannotCalculate as error:
        return ToolAnswer(f"error: {error}", True)


def _question(kind: int, chance: random.Random) -> tuple[str, str]:
    """A question, and code that answers it."""
    a, b, c, d = (chance.randint(100, 999) for _ in range(4))
    if kind == 0:
        code = f"{a}*{b}{chance.choice('+-')}{c}*{d}"
        return f"What is {code}?", code
    if kind == 1:
        return f"What is the remainder of {a}**{b} divided by {c}?", f"{a}**{b}%{c}"
    few, many = chance.randint(3, 19), a * b
    return (
        f"How many whole numbers from 1 to {many} are multiples of {few} or end with the digit {d % 10}?",
        f"sum((n % {few} == 0) or (n % 10 == {d % 10}) for n in range(1, {many} + 1))",
    )
