"""Two-digit addition with a scratchpad: small enough that a model of under a million parameters learns it in minutes.

The prompt is `12+34=` and the request for a length. The model answers digit by digit, units first, each with the
carry that comes in, then the sum: `<2+4+0=6,1+3+0=4>46`. Only the sum is scored, strictly: what follows the last `>`
must be the sum and nothing else. The scratchpad is the model's own business, as any chain of thought is.
"""

from __future__ import annotations

import random

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix

SMALLEST, LARGEST = 10, 99
"""Two-digit operands, so that every task has the same shape and the answers have two or three digits."""

OPERANDS = LARGEST - SMALLEST + 1


class Arithmetic:
    """See the module's page. `verification_info` of a task is `{"answer": "46"}`."""

    name = "arithmetic"
    version = "1"

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` of the 8100 additions of two two-digit numbers, without repeats."""
        if not 1 <= count <= OPERANDS**2:
            raise ValueError(f"arithmetic: {count} tasks requested; allowed: 1 to {OPERANDS**2} (there are no more)")
        drawn = random.Random(seed).sample(range(OPERANDS**2), count)
        return [_task(SMALLEST + n // OPERANDS, SMALLEST + n % OPERANDS) for n in drawn]

    def prompt(self, task: Task, target_length: int | None) -> str:
        """`12+34= Think for 24 tokens before giving a response.` and a line end, where the answer begins."""
        return f"{task.prompt}{length_suffix(target_length)}\n"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 when the text after the last `>` is exactly the sum, else 0. Linear in the length of the text."""
        answer = task.verification_info.get("answer")
        if not isinstance(answer, str) or not answer.isascii() or not answer.isdecimal():
            return Unscorable(
                f"task {task.problem_id}: verification_info.answer is {answer!r}; allowed: a decimal number"
            )
        given = completion.rpartition(">")[2]
        if given == answer:
            return Score(1.0, "the sum is right")
        return Score(0.0, f"the answer is {given[:32]!r}, but the sum is {answer}")

    def has_answer(self, task: Task, completion: str) -> bool:
        """Whether a number stands behind the scratchpad."""
        _, closed, given = completion.rpartition(">")
        return bool(closed) and given.isascii() and given.isdecimal()

    def gold(self, task: Task) -> str:
        """The scratchpad and the sum, written out."""
        return worked_addition(*operands(task))

    def broken(self, task: Task) -> str:
        """The same with a slip in the units."""
        return worked_addition(*operands(task), units_slip=1)


def operands(task: Task) -> tuple[int, int]:
    """The two numbers of a task of this environment."""
    left, _, right = str(task.prompt).removesuffix("=").partition("+")
    return int(left), int(right)


def worked_addition(left: int, right: int, units_slip: int = 0, tens_slip: int = 0) -> str:
    """`<2+4+0=6,1+3+0=4>46` for 12 and 34: column by column from the units, `digit+digit+carry in=column sum`.

    A slip is added to the sum of its column (never below 0), and what follows is worked out from there.
    """
    units = max(0, left % 10 + right % 10 + units_slip)
    carry = units // 10
    tens = max(0, left // 10 + right // 10 + carry + tens_slip)
    columns = f"{left % 10}+{right % 10}+0={units},{left // 10}+{right // 10}+{carry}={tens}"
    return f"<{columns}>{10 * tens + units % 10}"


def _task(left: int, right: int) -> Task:
    return Task(
        problem_id=f"add-{left}-{right}",
        task_type="arithmetic",
        prompt=f"{left}+{right}=",
        verification_info={"answer": str(left + right)},
        metadata={},
    )
