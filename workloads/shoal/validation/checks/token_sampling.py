"""Tokens were drawn from the claimed policy's distribution (INTELLECT-2, section 2.3.2).

Hidden states show what a token was followed by, not how it was chosen: a worker may let a small model write and
prefill the result with the right weights. The paper looks at the distribution of the chosen tokens' probabilities,
which has no second mode at 0 when tokens were sampled. Here the policy itself says, position by position, what an
honest sample looks like, and two sums over the checked tokens are compared with it: the number of improbable
tokens (the second mode at 0), and the surprise. Its excess shows tokens of another distribution even where every token is
improbable; its lack shows a lower temperature or a choice among several samples.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shoal.contracts.rollouts import Rollout
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.prefill import LOW_PROBABILITY, SURPRISE_CAP, Prefill
from shoal.validation.sequential import other_temperature, ratios

SURPRISE_MARGIN = 0.05
"""Nats a token by which surprise may be off however many tokens there are: vLLM and transformers differ a little in
half precision.
"""
LOGPROB_DIFFERENCE = 0.5
LOGPROB_DIFFERENCE_SHARE = 0.05
"""Share of tokens whose claimed log-probability may be off by more than LOGPROB_DIFFERENCE (honest bfloat16 differs
by 0.12 at most, float32 by 1e-5). The difference is that at temperature 1 and above; a lower one divides logits.
"""

Float64 = npt.NDArray[np.float64]


def check(file: File, prefills: Mapping[int, Prefill], facts: Facts, chance: float) -> Finding | None:
    """Claimed log-probabilities, improbable tokens and surprise of the rows in `prefills`, and the sequential test.

    `chance`: how often each of the two sums may reject an honest file. A slash needs a second check.
    """
    logprobs = _column(prefills, "logprobs")
    claimed = np.concatenate([sampled_logprobs(file.rows[number]) for number in prefills])
    problem = (
        _false_claims(logprobs, claimed, LOGPROB_DIFFERENCE / min(1.0, facts.sampling.temperature))
        or _improbable(logprobs, _column(prefills, "low"), facts.validation.max_low_probability_share, chance)
        or _surprise(logprobs, _column(prefills, "surprise_mean"), _column(prefills, "surprise_variance"), chance)
        or other_temperature(ratios(prefills.values()), facts.validation)
    )
    return None if problem is None else reject("token_sampling", problem)


def sampled_logprobs(row: Rollout) -> Float64:
    """What a row claims of its sampled tokens; tokens of tools were drawn by nobody."""
    return np.compress(row.completion_mask, np.asarray(row.completion_logprobs))


def tail(excess: float, variance: float, bound: float) -> float:
    """Upper bound on the chance that a sum exceeds its expectation by `excess` or more.

    `variance` is the sum of the terms' variances, `bound` the most that a term exceeds its own expectation.
    Freedman's inequality (On tail probabilities for martingales, 1975): terms may depend on those before, as tokens
    do.
    """
    if excess <= 0.0:
        return 1.0
    return math.exp(-excess * excess / (2.0 * (variance + bound * excess / 3.0)))


def _false_claims(ours: Float64, claimed: Float64, allowed: float) -> str | None:
    off = float((np.abs(ours - claimed) > allowed).mean())
    if off <= LOGPROB_DIFFERENCE_SHARE:
        return None
    return f"{off:.0%} of {ours.size} claimed log-probabilities differ from ours by more than {allowed:g}"


def _improbable(logprobs: Float64, chances: Float64, allowed_excess: float, chance: float) -> str | None:
    found = float((logprobs < math.log(LOW_PROBABILITY)).sum())
    excess = found - float(chances.sum())
    unlikely = tail(excess, float((chances * (1 - chances)).sum()), 1.0) < chance
    if not unlikely or excess / logprobs.size <= allowed_excess:
        return None
    return (
        f"{found / logprobs.size:.1%} of {logprobs.size} tokens have a probability below {LOW_PROBABILITY}; "
        f"{chances.mean():.1%} are expected of this policy"
    )


def _surprise(logprobs: Float64, means: Float64, variances: Float64, chance: float) -> str | None:
    surprise = np.minimum(-logprobs, SURPRISE_CAP)
    excess = float((surprise - means).sum())
    unlikely = 2.0 * tail(abs(excess), float(variances.sum()), SURPRISE_CAP) < chance  # on either side
    if not unlikely or abs(excess) / logprobs.size <= SURPRISE_MARGIN:
        return None
    return (
        f"{logprobs.size} tokens have a mean surprise of {surprise.mean():.2f} nats; "
        f"sampled from this policy it would be {means.mean():.2f}"
    )


def _column(prefills: Mapping[int, Prefill], name: str) -> Float64:
    return np.concatenate([getattr(ours, name) for ours in prefills.values()], dtype=np.float64)
