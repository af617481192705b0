"""A learner's additions: the right method, some slips, and about half of the answers right."""

import math
import random

import pytest

from shoal.environments.arithmetic import Arithmetic, operands, worked_addition
from shoal.environments.slips import learners_addition

ENVIRONMENT = Arithmetic()


def test_a_slip_in_a_column_is_carried_on_from_there() -> None:
    assert worked_addition(15, 14, units_slip=1) == "<5+4+0=10,1+1+1=3>30"
    assert worked_addition(12, 34, tens_slip=-1) == "<2+4+0=6,1+3+0=3>36"
    assert worked_addition(10, 10, units_slip=-1) == "<0+0+0=0,1+1+0=2>20"


@pytest.mark.parametrize("slips", [0.0, 0.1, 0.5])
def test_about_as_many_answers_are_right_as_the_share_of_slips_says(slips: float) -> None:
    chance = random.Random(0)
    tasks = ENVIRONMENT.tasks(2000, seed=0)
    right = (
        sum(ENVIRONMENT.score(task, learners_addition(*operands(task), chance, slips)).task_reward for task in tasks)
        / 2000
    )
    # A sum such as 55 reads the same from both ends, so that a few slips do no harm; three standard errors of 2000 draws.
    error = 3 * math.sqrt(slips * (1 - slips) / 2000)
    assert -error <= right - (1 - slips) < 0.1


def test_the_same_chance_gives_the_same_text() -> None:
    first, second = random.Random(5), random.Random(5)
    assert [learners_addition(12, 34, first) for _ in range(50)] == [
        learners_addition(12, 34, second) for _ in range(50)
    ]
