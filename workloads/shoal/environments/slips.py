"""Additions as a learner writes them: the method is right, and every now and then there is a slip.

What a generated base model is taught, so that it knows the method. It still has something to learn from its rewards, as
a model has that read the web: it was right sometimes, and nobody told it when. In: two numbers and a source of chance.
Out: a completion that scores 1 about as often as no slip is drawn. Called by `generated_model`.
"""

import random

from shoal.environments.arithmetic import worked_addition

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
