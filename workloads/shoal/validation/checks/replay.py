"""One completion handed in as several samples. (The same file twice never gets here: the orchestrator knows files by
their digest.)

Two samples of a group may honestly be equal when the policy is sure of its answer. They may not when that answer was
improbable: the chance of drawing it again is the product of its tokens' probabilities, which the row itself claims
(and `token_sampling` compares with ours).

A continuation that says the same as what it continues, or as another from there, is the same case: whole sequences are compared, and the chance is
that of the tokens that the later row sampled by itself. Copies with edits are for `copies` to find.
"""

import math
from collections import Counter

from shoal.validation.facts import Facts, File, Finding, reject

LEAST_LOG_PROBABILITY = -20.0
"""Natural logarithm of the least chance (2e-9) at which an equal second sample is believed. With the 480 pairs of
four groups of 16, an honest file is rejected once in a million."""
CHANCE = 1e-6
"""With continuations there are more pairs: the border is lower where it must be for an honest file to be rejected no more often than that."""


def check(file: File, facts: Facts) -> Finding | None:
    """Look for equal, improbable completions within each group, continuations among them."""
    border = _border(file, facts)
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    for number, row in enumerate(file.rows):
        key = (row.prompt_index, (*row.prompt_tokens, *row.completion_tokens))
        first = seen.setdefault(key, number)
        log_probability = sum(row.completion_logprobs)
        if first != number and log_probability < border:
            return reject(
                "replay",
                f"rows {first} and {number} are the same completion, whose log-probability is {log_probability:.1f}",
            )
    return None


def _border(file: File, facts: Facts) -> float:
    """Log-probability below which an equal second sample is not believed."""
    if facts.vine is None:
        return LEAST_LOG_PROBABILITY
    rows = Counter(row.prompt_index for row in file.rows)
    pairs = sum(each * (each - 1) // 2 for each in rows.values())
    return min(LEAST_LOG_PROBABILITY, math.log(CHANCE / max(1, pairs)))
