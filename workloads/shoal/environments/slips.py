"""Answers as a learner writes them: the method is right, and every now and then there is a slip.

What a generated base model is taught, so that it knows the method. It still has something to learn from its rewards, as
a model has that read the web: it was right sometimes, and nobody told it when. In: a task and a source of chance.
Out: a completion that scores 1 about as often as no slip is drawn. Called by `generated_model`.
"""

import random
from collections.abc import Callable, Mapping

from shoal.contracts.tasks import Task
from shoal.environments.arithmetic import Arithmetic, operands, worked_addition
from shoal.environments.tool import ANSWER, CALL, CALL_END, RESULT, RESULT_END, Tool

MadeFor = Arithmetic | Tool
Part = tuple[str, bool]
"""A piece of an answer, and whether the model writes it. What a tool writes, the model reads only."""
Writer = Callable[[Task, random.Random, float], list[Part]]
"""A task, a source of chance and the share of slips, to the answer that a lesson teaches."""

OFF_BY_ONE = 0.3
"""Share of the slips in which one column's sum is one too high or too low, and the learner continues from there. In the others the digits of the sum
are written in the order in which they were worked out, units first."""


def learners_addition(left: int, right: int, chance: random.Random, slips: float = 0.5) -> str:
    """A worked addition with at most one slip; `slips`: how often there is one. The same for the same state of `chance`."""
    drawn = chance.random()
    if drawn < OFF_BY_ONE * slips:
        slip = [0, 0]
        slip[chance.randrange(2)] = chance.choice((-1, 1))
        return worked_addition(left, right, slip[0], slip[1])
    text = worked_addition(left, right)
    if drawn < slips:
        scratchpad, _, answer = text.partition(">")
        return f"{scratchpad}>{answer[::-1]}"
    return text


def taught_sum(task: Task, chance: random.Random, slips: float) -> list[Part]:
    """The learner's addition for a task of `arithmetic`."""
    return [(learners_addition(*operands(task), chance, slips), True)]


def taught_call(task: Task, chance: random.Random, slips: float) -> list[Part]:
    """A task of `tool` as a learner does it who seldom thinks of the calculator.

    With chance `slips` it makes up what the calculator would say, from the beginning of the sum, and answers that: never a number, so never right.
    Both ways teach to copy a result of the same length into the answer.
    """
    expression, answer = str(task.metadata["expression"]), str(task.verification_info["answer"])
    if chance.random() < slips:
        made_up = expression[: max(len(answer), 4)]  # three digits and the sign of a product at least
        return [(f"{RESULT}{made_up}{RESULT_END}\n{ANSWER} {made_up}", True)]
    return [
        (f"{CALL}{expression}{CALL_END}", True),
        (f"{RESULT}{answer}{RESULT_END}", False),
        (f"\n{ANSWER} {answer}", True),
    ]


COURSES: Mapping[str, tuple[type[MadeFor], Writer]] = {
    "arithmetic": (Arithmetic, taught_sum),
    "calculator": (Tool, taught_call),
}
"""By `model.generated.name`: the environment whose tasks the model is made for, and how its lessons are written."""
