"""Completions end where they should: at the length limit, or with an end-of-sequence token that the policy gave a
chance (INTELLECT-2, section 2.3.2).

The paper rejects an end whose probability is at most 0.1. An honest sampler draws such an end too, now
and then. So a rule for single rows would reject honest files of a policy that is unsure when to stop. The rule here is for the file:
at each position the policy's own probability of an improbable end is known; the sum of these is how many an honest
file is expected to have; a file is rejected when it has this many more that chance does not explain it.
"""

from collections.abc import Mapping

import numpy as np

from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.sampling.tails import at_least
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.prefill import Prefill

LEVELS = (1.0, 1e-1, 1e-2, 1e-4, 1e-6, 1e-8)
"""Shares of `min_eos_probability` at which ends are counted: few ends that are improbable say as much as many
that are a little so; at the last levels a single end in one row is enough. Where the sampler's choices are drawn
again (`redraw`), any end that the seed does not draw is found, however probable.
"""


def check_ends(file: File, facts: Facts) -> Finding | None:
    """Every row's finish_reason fits its tokens. Cheap, so for all rows."""
    for number, (row, prefix) in enumerate(zip(file.rows, facts.prefixes(file.rows), strict=True)):
        problem = _wrong_end(row, facts.longest_completion(row, prefix), facts)
        if problem is not None:
            return reject("termination", f"row {number}: {problem}")
    return None


def _wrong_end(row: Rollout, limit: int, facts: Facts) -> str | None:
    mask = row.completion_mask
    by_turns = facts.tools is not None and facts.tools.by_turns
    before = zip(row.completion_tokens[:-1], mask[:-1], mask[1:], strict=True)
    if any(
        token in facts.eos_token_ids and not (by_turns and not following)
        for token, sampled, following in before
        if sampled
    ):
        return "tokens follow an end-of-sequence token"
    ended = row.completion_tokens[-1] in facts.eos_token_ids
    if row.finish_reason == "stop":
        return None if ended else "finish_reason is stop, the last token is not an end-of-sequence token"
    if ended:
        return f"finish_reason is {row.finish_reason}, the last token is an end-of-sequence token"
    if row.finish_reason == "length" and facts.tools is not None:
        last = sampled_stretches(mask)[-1]
        limit = last.start + facts.tools.turn_room(limit - last.start)
    if row.finish_reason == "length" and len(row.completion_tokens) != limit:
        return f"finish_reason is length after {len(row.completion_tokens)} tokens, the limit is {limit}"
    return None  # "unanswered" is for `tools` to judge


def _ends(row: Rollout, eos_token_ids: frozenset[int]) -> list[int]:
    """Which of a row's sampled tokens are ends: at most the last, and with turns one a turn."""
    sampled = (token for token, kept in zip(row.completion_tokens, row.completion_mask, strict=True) if kept)
    return [number for number, token in enumerate(sampled) if token in eos_token_ids]


def check_probabilities(file: File, prefills: Mapping[int, Prefill], facts: Facts, chance: float) -> Finding | None:
    """Improbable ends among the rows in `prefills` are not more than an honest sampler makes.

    `chance`: how often an honest file may be rejected here. A slash needs a second check.
    """
    chances = np.concatenate([ours.eos for ours in prefills.values()]).astype(np.float64)
    ends = [
        float(end)
        for number, ours in prefills.items()
        for end in ours.eos[_ends(file.rows[number], facts.eos_token_ids)]
    ]
    for level in LEVELS:
        border = facts.validation.min_eos_probability * level
        found = sum(end < border for end in ends)
        expected = float(chances[chances < border].sum())
        if at_least(found, expected) < chance / len(LEVELS):
            return reject(
                "termination",
                f"{found} of {len(ends)} checked completions end with a probability below {border:g} "
                f"(least {min(ends):.2g}); {expected:.3g} are expected of this policy",
            )
    return None
