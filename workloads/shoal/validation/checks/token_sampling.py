"""Tokens were drawn from the claimed policy's distribution (INTELLECT-2, section 2.3.2).

Hidden states show what a token was followed by, not how it was chosen: a worker may let a small model write and
prefill the result with the right weights. The paper looks at the distribution of the chosen tokens' probabilities,
which has no second mode at 0 when tokens were sampled. Here that mode is measured: improbable tokens are counted and
compared with how many the policy itself expects at the same positions.
"""

import math
from collections.abc import Mapping

import numpy as np

from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.prefill import LOW_PROBABILITY, Prefill

STANDARD_DEVIATIONS = 4.0
"""An excess within this of chance is not held against a file: an honest one goes beyond it once in 30,000."""
LOGPROB_DIFFERENCE = 0.5
LOGPROB_DIFFERENCE_SHARE = 0.05
"""Share of tokens whose claimed log-probability may be off by more than LOGPROB_DIFFERENCE (honest bfloat16 differs
by 0.12 at most, float32 by 1e-5)."""


def check(file: File, prefills: Mapping[int, Prefill], facts: Facts) -> Finding | None:
    """Improbable tokens, and claimed log-probabilities, of the rows in `prefills`."""
    ours = np.concatenate([found.logprobs for found in prefills.values()]).astype(np.float64)
    claimed = np.concatenate([np.asarray(file.rows[number].completion_logprobs) for number in prefills])
    off = float((np.abs(ours - claimed) > LOGPROB_DIFFERENCE).mean())
    if off > LOGPROB_DIFFERENCE_SHARE:
        return reject(
            "token_sampling",
            f"{off:.0%} of {ours.size} claimed log-probabilities differ from ours by more than {LOGPROB_DIFFERENCE}",
        )
    chances = np.concatenate([found.low for found in prefills.values()]).astype(np.float64)
    found = float((ours < math.log(LOW_PROBABILITY)).mean())
    expected = float(chances.mean())
    deviation = math.sqrt(float((chances * (1 - chances)).sum())) / ours.size
    allowed = expected + max(facts.validation.max_low_probability_share, STANDARD_DEVIATIONS * deviation)
    if found > allowed:
        return reject(
            "token_sampling",
            f"{found:.1%} of {ours.size} tokens have a probability below {LOW_PROBABILITY}; {expected:.1%} are expected of this "
            f"policy, allowed are {allowed:.1%}",
        )
    return None
