"""Advantages from Monte-Carlo values, as in VinePPO (Kazemnejad et al., arXiv:2410.01679): no value network, continuations in its place.

In: the groups of a step, each completion with the rewards of continuations from its inner boundaries (`rollouts.Estimate`). Out: an advantage a
token. For a completion of n tokens with reward R, cut at positions 0 = p_0 <= p_1 <= ... <= p_m = n (`contracts.vine`):

    value        V(p_j) = mean reward of the continuations from p_j, 0 < p_j < n
                 V(0)   = mean reward of the other completions of the group, and of continuations from 0 where a completion is that short
                 V(n)   = R: after the last token there is nothing left to estimate
    advantage    A_t = V(p_{j+1}) - V(p_j) for the tokens from p_j up to p_{j+1}      (equation 6 of the paper, without discount, with all
                 reward at the end; its estimate of V is equation 5)
    normalised   (A_t - mean) / deviation, both over all tokens of the step that are learnt (`normalizeAdvantages`)

A completion is not a part of any value that its own tokens are compared with: so the values are unbiased over all groups that are sampled; over
those that the online filter keeps, V(0) and V(n) are not (docs/vineppo.md). Equal positions are one boundary with
all of their continuations; a boundary none of whose continuations could be scored is none, and the parts beside it become one. Penalties of length
are part of every reward here, those of overlong answers too. The policy is trained on completions alone: continuations give values. Pure; called by
`extension`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from shoal.training.advantages import SMALLEST_DEVIATION
from shoal.training.rollouts import RolloutGroup, Sample

Shaping = Callable[[Sample, float, int], float]
"""Adjusts the reward of an answer to a sample's prompt by the answer's length (tokens)."""
Values = list[tuple[int, float]]
"""Positions, ascending and each once, with their values."""


def unshaped(sample: Sample, reward: float, length: int) -> float:
    """The reward as it is."""
    return reward


def values_of(group: RolloutGroup, shaping: Shaping = unshaped) -> list[Values]:
    """The values along each completion of a group of two or more, from position 0 to its end."""
    rewards = [shaping(sample, sample.reward, sample.completion_length) for sample in group.samples]
    found = []
    for index, sample in enumerate(group.samples):
        at: dict[int, list[float]] = {0: [*rewards[:index], *rewards[index + 1 :]]}
        for estimate in sample.estimates:
            at.setdefault(estimate.position, []).append(shaping(sample, estimate.reward, estimate.length))
        if not at[0]:
            raise ValueError(f"{sample.name}: its group has no other completion; allowed: groups of two or more")
        values = [(position, float(np.mean(at[position]))) for position in sorted(at)]
        found.append([*values, (sample.completion_length, rewards[index])])
    return found


def token_advantages(values: Values) -> Float[np.ndarray, " completion"]:
    """One advantage a token of the completion: how much its part has changed the value. float64."""
    positions, levels = zip(*values, strict=True)
    return np.repeat(np.diff(levels), np.diff(positions))


def whitened(advantages: Sequence[Float[np.ndarray, " _"]], samples: Sequence[Sample]) -> list[Float[np.ndarray, " _"]]:
    """Less the mean and by the deviation over the sampled tokens of all samples; values that are equal except for rounding carry no signal: zeros."""
    sampled = np.concatenate([each[sample.mask] for each, sample in zip(advantages, samples, strict=True)])
    if not sampled.size or sampled.std() < SMALLEST_DEVIATION:
        return [np.zeros_like(each) for each in advantages]
    return [(each - sampled.mean()) / sampled.std() for each in advantages]


def boundary_means(groups: Sequence[RolloutGroup], segments: int) -> list[float]:
    """For the report: the mean value at each boundary, the first over prompts and the last the mean reward.

    Each boundary is over the completions that have an estimate there. One that nowhere has any is given the value before it.
    """
    samples = [sample for group in groups for sample in group.samples]
    inner: list[float] = []
    last = first = float(np.mean([sample.reward for sample in samples]))
    for boundary in range(1, segments):
        means = [
            float(np.mean(found))
            for sample in samples
            if (found := [each.reward for each in sample.estimates if each.boundary == boundary])
        ]
        last = float(np.mean(means)) if means else last
        inner.append(last)
    return [first, *inner, first]
