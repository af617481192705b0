"""How long completions are: lognormal, cut at the longest that is allowed. Closed form, pure. Called by `step_parts`.

Lengths of reasoning are skewed: most are short, and a file waits for its longest. `SPREAD` makes the mean 0.29 of the longest of 64, as at
the paper's lengths (mean 9,000, limit 30,720).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

SPREAD = 0.75
_NORMAL = NormalDist()


@dataclass(frozen=True)
class CompletionLengths:
    """Tokens of completions: the mean, and the most that is allowed."""

    mean: float
    limit: int
    spread: float = SPREAD

    @property
    def _mu(self) -> float:
        return math.log(self.mean) - self.spread**2 / 2

    @property
    def mean_position(self) -> float:
        """Mean number of completion tokens before a token, over all tokens: half the second moment by the mean."""
        s, edge = self.spread, (math.log(self.limit) - self._mu) / self.spread
        below = math.exp(2 * self._mu + 2 * s * s) * _NORMAL.cdf(edge - 2 * s)
        second = below + self.limit**2 * (1 - _NORMAL.cdf(edge))
        return second / (2 * self.mean)

    def longest_of(self, rows: int) -> float:
        """Expected length of the longest of `rows` completions, by the quantile rows / (rows + 1)."""
        if rows <= 1:
            return self.mean
        return min(
            float(self.limit),
            max(self.mean, math.exp(self._mu + self.spread * _NORMAL.inv_cdf(rows / (rows + 1)))),
        )
