"""How rarely counts of honest events are large: one bound for checks of a file and for the record of a node. Pure, no arrays.

In: a count and the number expected. Out: a bound on the chance. Called by `validation.checks`, and for a node's left-out rows by the orchestrator and
by audits.
"""

import math

LEFT_OUT_CHANCE = 0.01
"""How often an honest node's record may exceed the bound. That costs it the file, as a dropped lease does, and no more."""


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
    return math.exp(count - expected + count * math.log(expected / count))


def too_many_left_out(rows: int, tokens: int, outliers: float) -> bool:
    """Whether a node's files leave out more rows than rounding does: `rows` of files of `tokens` tokens, with honest `outliers` a token.

    The first is never too many: chance alone may bring it in the first file of a new key.
    """
    return rows > 1 and at_least(rows, outliers * tokens) < LEFT_OUT_CHANCE
