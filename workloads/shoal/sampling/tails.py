"""How rarely counts of honest events are large: one bound for checks of a file and for the record of a node. Pure, no arrays.

In: a count and the number expected. Out: a bound on the chance, for one look (`at_least`) or for all looks together (`too_many`). Called by
`validation.checks`, and for a node's left-out rows by the orchestrator and by audits.
"""

import math

RECORD_CHANCE = 0.01
"""How often the record of an honest node is ever beyond the bound, over all its files. That costs it a file, as a dropped lease does, and no more."""
BETS = (1.25, 2.0, 5.0, 17.0, 65.0)
"""How many times the honest rate a liar's may be. Small ones serve long records, large ones few and rare events. Their mean is below
1 / `RECORD_CHANCE`: so the first event of a node is never too many, however short its files were."""


def at_least(count: int, expected: float) -> float:
    """Upper bound on the chance of `count` or more events where `expected` are expected.

    The chances may differ and depend on what came before, as they do along a completion: Chernoff's bound for a
    counting martingale, `exp(count - expected) * (expected / count)**count` (Freedman, On tail probabilities for
    martingales, 1975).
    """
    if count <= expected:
        return 1.0
    if expected <= 0.0:
        return 0.0
    return math.exp(count - expected + count * (math.log(expected) - math.log(count)))


def too_many(count: int, expected: float) -> bool:
    """Whether `count` events are more than honest ones where at most `expected` are expected, however often it is asked while both grow.

    For each rate r of `BETS`, `r**count * exp((1 - r) * expected)` is what a bet on it has won, and of honest events a supermartingale that begins
    at 1. So is the mean of them. It ever reaches 1 / `RECORD_CHANCE` with at most that chance (Ville, 1939).
    """
    won = [count * math.log(rate) + (1.0 - rate) * expected for rate in BETS]
    most = max(won)
    mean = math.log(sum(math.exp(each - most) for each in won) / len(BETS))
    return most + mean >= -math.log(RECORD_CHANCE)
