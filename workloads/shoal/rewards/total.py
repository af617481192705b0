"""The reward of a completion: task reward minus length penalty (paper section 3.1.2).

Workers claim it, validators compute it again, with this one function.
"""

from shoal.contracts.completions import LengthReward
from shoal.contracts.verdicts import RowReward


def total_reward(
    task_reward: float | None,
    completion_length: int,
    target_length: int | None,
    length: LengthReward | None,
    turns: tuple[float, ...] | None = None,
) -> RowReward:
    """`task_reward - alpha * |target_length - completion_length|`, lengths in tokens; all None where the task could not be scored.

    `turns`: what of the task reward each turn earned; None where the run does not ask.
    """
    if task_reward is None:
        return RowReward(task_reward=None, length_penalty=None, reward=None)
    penalty = 0.0
    if length is not None and target_length is not None:
        penalty = length.alpha * abs(target_length - completion_length)
    return RowReward(task_reward=task_reward, length_penalty=penalty, reward=task_reward - penalty, turns=turns)
