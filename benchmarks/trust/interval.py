"""Clopper-Pearson intervals: what `k` events in `n` trials say about a rate. Pure.

C. Clopper, E. Pearson, The use of confidence or fiducial limits illustrated in the case of the binomial, Biometrika 26 (1934). Exact, so
never too narrow.
"""

import math
from collections.abc import Callable

CONFIDENCE = 0.95


def clopper_pearson(events: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Lower and upper limit of the rate, two-sided; raises ValueError unless 0 <= events <= trials and trials >= 1."""
    if not 0 <= events <= trials or trials < 1:
        raise ValueError(f"{events} events in {trials} trials: allowed: 0 to trials, and at least one trial")
    tail = (1 - confidence) / 2
    # With no event, or only events, one limit is 0 or 1 and the other takes the whole error.
    one_sided = 1 - confidence
    lower = 0.0 if events == 0 else _solve(
        lambda rate: at_least(events, trials, rate), one_sided if events == trials else tail
    )  # fmt: skip
    upper = 1.0 if events == trials else _solve(
        lambda rate: at_least(events + 1, trials, rate), 1 - (one_sided if events == 0 else tail)
    )  # fmt: skip
    return lower, upper


def at_least(events: int, trials: int, rate: float) -> float:
    """Chance of `events` or more in `trials` when each has chance `rate`."""
    if events <= 0:
        return 1.0
    if rate <= 0.0:
        return 0.0
    if rate >= 1.0:
        return 1.0
    fewer = math.fsum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + k * math.log(rate)
            + (trials - k) * math.log1p(-rate)
        )
        for k in range(events)
    )
    return max(0.0, 1.0 - fewer)


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    """Where a function that rises over [0, 1] takes the value `wanted`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
