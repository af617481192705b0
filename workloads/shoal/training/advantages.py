"""Advantages of a group: how much better each completion is than its siblings (GRPO; paper section 3.4).

In: the rewards of one group, from the validators' verdicts. Out: one advantage a completion. Pure; called by `batches`.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

SMALLEST_DEVIATION = 1e-6
"""Rewards that differ by less are equal except for rounding; dividing by so little would make noise the loudest signal."""


def group_advantages(
    rewards: Float[np.ndarray, " group"], *, normalize: bool, leave_one_out: bool = False
) -> Float[np.ndarray, " group"]:
    """Reward minus the group's mean, divided by its standard deviation if `normalize`; float64.

    With `leave_one_out` the mean is that of the others (RLOO, arXiv:2402.14740): the same differences, times group / (group - 1). The deviation
    is the population's, since the group is all there is. Equal rewards and groups of one give zeros.
    Raises ValueError when there are no rewards or one of them is not finite.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.size == 0:
        raise ValueError("a group has no rewards; allowed: one or more")
    if not np.isfinite(rewards).all():
        place = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise ValueError(f"reward {place} of the group is {rewards[place]}; allowed: finite numbers")
    centred = rewards - rewards.mean()
    deviation = float(rewards.std())
    if deviation < SMALLEST_DEVIATION:
        return np.zeros_like(centred)
    if leave_one_out:
        centred = centred * (rewards.size / (rewards.size - 1))
    return np.asarray(centred / deviation if normalize else centred)


def turn_advantages(
    rewards: Sequence[Sequence[float]], *, normalize: bool, leave_one_out: bool = False
) -> list[Float[np.ndarray, " turns"]]:
    """One advantage a turn, float64, from the rewards of the turns of each of a group's episodes (one turn or more each).

    GRPO with process supervision (DeepSeekMath, arXiv:2402.03300, section 4.1.3), whose steps are turns here. A turn's reward is taken relative to
    those of all turns of the group; the advantage is the sum over that turn and the later ones of its episode. So an episode with many turns is
    compared with the group's mean once a turn. Episodes of one turn have the advantages of `group_advantages`. With `leave_one_out` the mean is
    that of the other episodes' turns. A group whose turns all have equal rewards gives zeros. Raises ValueError as `group_advantages` does.
    """
    every = np.array([each for episode in rewards for each in episode], dtype=np.float64)
    centred = group_advantages(every, normalize=False)
    deviation = float(every.std()) if normalize and centred.any() else 1.0
    found, start = [], 0
    for episode in rewards:
        own = slice(start, start + len(episode))
        start = own.stop
        relative = centred[own]
        if leave_one_out and centred.any():
            others = np.delete(every, own)
            relative = every[own] - (others.mean() if others.size else every[own])
        found.append(np.cumsum(relative[::-1])[::-1] / deviation)
    return found
