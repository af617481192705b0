"""A calculator in the loop: sums too large for the head, and a tool that does them.

The model writes `<calc>123*456</calc>`, sampling pauses, the calculator's `<result>56088</result>` is put after it, and the model continues.
What follows the last `Answer:` is scored, strictly. A result that the model writes itself is the model's own text and proves nothing.
`verification_info` of a task is `{"answer": "..."}`.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable
from fractions import Fraction

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix

CALL, CALL_END = "<calc>", "</calc>"
RESULT, RESULT_END = "<result>", "</result>"
ANSWER = "Answer:"
LONGEST_EXPRESSION = 200
"""Characters; Python's parser takes far deeper nesting than fits into these."""
LARGEST_EXPONENT = 64
MOST_BITS = 4096
"""Of any number on the way: about 1200 digits."""
MOST_TASKS = 100_000


class CannotCalculate(ValueError):
    """An expression that the calculator does not take; the message is what the model reads."""


class Tool:
    """See the module's page; `episodes` has the loop."""

    name = "tool"
    version = "1"
    sources = ("shoal.environments.episodes",)
    stop = (CALL_END,)
    most_calls = 8

    def tasks(self, count: int, seed: int) -> list[Task]:
        """Sums of products of three-digit numbers, without repeats."""
        if not 1 <= count <= MOST_TASKS:
            raise ValueError(f"tool: {count} tasks requested; allowed: 1 to {MOST_TASKS}")
        chance = random.Random(seed)
        made: dict[str, Task] = {}
        while len(made) < count:
            a, b, c, d = (chance.randint(100, 999) for _ in range(4))
            expression = f"{a}*{b}{chance.choice('+-')}{c}*{d}"
            made[expression] = Task(
                problem_id=f"calc-{expression}",
                task_type="tool",
                prompt=f"What is {expression}?",
                verification_info={"answer": calculate(expression)},
                metadata={"expression": expression},
            )
        return list(made.values())

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The question, how to call the calculator, and how to answer."""
        how = f"Write {CALL}expression{CALL_END} to use a calculator, and end with `{ANSWER}` and the number."
        return f"{task.prompt}\n{how}{length_suffix(target_length)}\n\n"

    def observe(self, task: Task, text: str) -> str | Unscorable | None:
        """The calculator's result, or what is wrong with the expression; None when the text does not end in a call."""
        if not text.endswith(CALL_END):
            return None
        _, found, expression = text.removesuffix(CALL_END).rpartition(CALL)
        if not found:
            return None
        try:
            return f"{RESULT}{calculate(expression)}{RESULT_END}"
        except CannotCalculate as error:
            return f"{RESULT}error: {error}{RESULT_END}"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 when what follows the last `Answer:` is exactly the number."""
        answer = task.verification_info.get("answer")
        if not isinstance(answer, str) or not answer:
            return Unscorable(
                f"task {task.problem_id}: verification_info.answer is {answer!r}; allowed: a number as text"
            )
        _, said, given = completion.rpartition(ANSWER)
        if said and given.strip() == answer:
            return Score(1.0, "the answer is right")
        return Score(
            0.0,
            f"the answer is {given.strip()[:32]!r}, but the right one is {answer}"
            if said
            else f"there is no {ANSWER!r}",
        )

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether something follows the last `Answer:`."""
        _, said, given = completion.rpartition(ANSWER)
        return bool(said and given.strip())

    def gold(self, task: Task) -> str:
        """An episode with one call."""
        expression = str(task.metadata["expression"])
        return (
            f"{CALL}{expression}{CALL_END}{RESULT}{calculate(expression)}{RESULT_END}\n{ANSWER} {calculate(expression)}"
        )

    def broken(self, task: Task) -> str:
        """The same episode with an answer that is one too high."""
        expression = str(task.metadata["expression"])
        return f"{CALL}{expression}{CALL_END}{RESULT}{calculate(expression)}{RESULT_END}\n{ANSWER} {calculate(expression + '+1')}"


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
}


def calculate(expression: str) -> str:
    """An expression of whole and decimal numbers with + - * / // % ** and brackets, exactly: `56088`, `1/3`. CannotCalculate says why not."""
    if len(expression) > LONGEST_EXPRESSION:
        raise CannotCalculate(f"the expression is longer than {LONGEST_EXPRESSION} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CannotCalculate("this is not an expression") from None
    return str(_value(tree.body))


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        text = ast.unparse(node)
        if text in ("inf", "1e309") or "j" in text:
            raise CannotCalculate("a number is too large")
        return _bounded(Fraction(text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if right.denominator != 1 or abs(right) > LARGEST_EXPONENT:
                raise CannotCalculate(f"an exponent must be a whole number of at most {LARGEST_EXPONENT}")
            if left == 0 and right < 0:
                raise CannotCalculate("division by zero")
            return _bounded(Fraction(left ** int(right)))
        if type(node.op) in _OPERATORS:
            if right == 0 and isinstance(node.op, ast.Div | ast.Mod | ast.FloorDiv):
                raise CannotCalculate("division by zero")
            return _bounded(_OPERATORS[type(node.op)](left, right))
    raise CannotCalculate("allowed: numbers, + - * / // % ** and brackets")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise CannotCalculate("a number is too large")
    return value
