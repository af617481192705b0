"""Whether a run learnt, told from the noise of its rewards. Pure.

In: the mean task reward of each trained step, in order. Out: a `Rise`: what the last third of the steps earned above the first third, and how far
chance alone carries two such means apart. Called by the story.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FEWEST = 30
"""Steps: with fewer, the noise itself is not known well enough."""


@dataclass(frozen=True)
class Rise:
    """`difference` in reward, `error`: its standard error."""

    difference: float
    error: float

    @property
    def errors(self) -> float:
        """The rise in standard errors; with a policy that stands still, normal with mean 0 and deviation 1."""
        return self.difference / self.error if self.error else 0.0


def rise(rewards: Sequence[float]) -> Rise:
    """The last third against the first. Noise is taken from what follows upon one another (half the mean squared difference: von Neumann 1941),
    where a slow trend hardly counts. Raises ValueError for fewer steps than `FEWEST`."""
    if len(rewards) < FEWEST:
        raise ValueError(f"{len(rewards)} steps tell no rise from noise; {FEWEST} do")
    third = len(rewards) // 3
    steps = [after - before for before, after in pairwise(rewards)]
    variance = sum(step * step for step in steps) / (2 * len(steps))
    difference = (sum(rewards[-third:]) - sum(rewards[:third])) / third
    return Rise(difference, math.sqrt(2 * variance / third))
