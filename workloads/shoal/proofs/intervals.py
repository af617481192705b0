"""How sure a measured rate is: the interval of Clopper and Pearson (Biometrika 26, 1934), from the binomial distribution itself.

In: events and trials. Out: `ErrorRate` with its two-sided 95 % interval; nothing here needs more than the standard library. Called by `calibration`
and the benchmarks.
"""

from collections.abc import Callable
from math import exp, lgamma, log

from shoal.contracts.proof_profile import ErrorRate

CONFIDENCE = 0.95
HALVINGS = 60  # of an interval of length 1: past float64's own precision


def error_rate(events: int, trials: int) -> ErrorRate:
    """The rate of `events` in `trials` with its interval; of no trials nothing is known, so it is from 0 to 1."""
    if not 0 <= events <= trials:
        raise ValueError(f"{events} events in {trials} trials: events are from 0 to the number of trials")
    tail = (1.0 - CONFIDENCE) / 2
    low = 0.0 if events == 0 else _solve(lambda p: 1.0 - _at_most(events - 1, trials, p) < tail)
    high = 1.0 if events == trials else _solve(lambda p: _at_most(events, trials, p) > tail)
    return ErrorRate(events=events, trials=trials, low=low, high=high)


def _solve(below: Callable[[float], bool]) -> float:
    """The point of [0, 1] up to which `below` holds."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def _at_most(events: int, trials: int, p: float) -> float:
    """Chance of at most `events` in `trials` of probability `p`, 0 < p < 1. Sums the shorter tail."""
    if events > trials / 2:
        return 1.0 - _at_most(trials - events - 1, trials, 1.0 - p)
    total = 0.0
    for k in range(events + 1):
        ways = lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
        total += exp(ways + k * log(p) + (trials - k) * log(1.0 - p))
    return total
