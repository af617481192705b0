"""Additions as a learner writes them: the method is right, and every now and then there is a slip.

What a generated base model is taught, so that it knows the method and still has something to learn from its rewards, as
a model has that read the web: it was right sometimes, and nobody told it when. In: two numbers and a source of chance.
Out: a completion that scores 1 about half of the time. Called by `generated_model`.
"""

import random

from shoal.environments.arithmetic import worked_addition

REVERSED_SHARE = 0.35
"""The digits of the sum written in the order in which they were worked out, units first."""
OFF_BY_ONE_SHARE = 0.15
"""One column's sum is one too high or too low, and the learner goes on from there."""


def learners_addition(left: int, right: int, chance: random.Random) -> str:
    """A worked addition with at most one slip; the same for the same state of `chance`."""
    drawn = chance.random()
    if drawn < OFF_BY_ONE_SHARE:
        slips = [0, 0]
        slips[chance.randrange(2)] = chance.choice((-1, 1))
        return worked_addition(left, right, slips[0], slips[1])
    text = worked_addition(left, right)
    if drawn < OFF_BY_ONE_SHARE + REVERSED_SHARE:
        scratchpad, _, answer = text.partition(">")
        return f"{scratchpad}>{answer[::-1]}"
    return text
