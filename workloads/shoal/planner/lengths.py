"""How long completions are: lognormal, cut at the longest that is allowed. Closed form, pure. Called by `step_parts`.

Lengths of reasoning are skewed: most are short, and a file waits for its last. `SPREAD` makes the mean 0.29 of the longest of 64, as at
the paper's lengths (mean 9,000, limit 30,720).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

SPREAD = 0.75
_NORMAL = NormalDist()
_BEGINS, _CLOSE = 16, 1e-3
"""Moments that stand for a window, and how exact its last end is."""


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

    def last_of(self, rows: int, window: float) -> float:
        """When the last of `rows` completions ends, in tokens, if they begin evenly over a `window` of tokens: the quantile rows / (rows + 1).

        The longest of them where all begin at once.
        """
        wanted = rows / (rows + 1)
        begins = [window * (place + 0.5) / _BEGINS for place in range(_BEGINS)]
        low, high = 0.0, window + self.limit
        while high - low > _CLOSE * high:
            middle = (low + high) / 2
            ended = sum(self._shorter(middle - begin) for begin in begins) / _BEGINS
            low, high = (middle, high) if ended < wanted else (low, middle)
        return high

    def _shorter(self, tokens: float) -> float:
        """Share of completions that are no longer than this."""
        if tokens <= 0:
            return 0.0
        return 1.0 if tokens >= self.limit else _NORMAL.cdf((math.log(tokens) - self._mu) / self.spread)
