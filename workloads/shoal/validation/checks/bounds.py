"""Every value is one that the run's software can produce (INTELLECT-2, section 2.3.3, "value bounds")."""

import math

from shoal.contracts.rollouts import Rollout
from shoal.validation.facts import Facts, File, Finding, reject

ROUNDING = 1e-3
"""A log-probability of a certain token may come out a little above 0 in half precision."""


def check(file: File, facts: Facts) -> Finding | None:
    """Bounds of tokens, lengths and log-probabilities of every row."""
    for number, row in enumerate(file.rows):
        problem = _problem(row, facts)
        if problem is not None:
            return reject("bounds", f"row {number}: {problem}")
    return None


def _problem(row: Rollout, facts: Facts) -> str | None:
    for name in ("prompt_tokens", "completion_tokens"):
        tokens = getattr(row, name)
        if min(tokens) < 0 or max(tokens) >= facts.vocabulary:
            return f"{name} holds an id outside 0..{facts.vocabulary - 1}"
    if len(row.completion_tokens) > facts.sampling.max_completion_tokens:
        return f"{len(row.completion_tokens)} completion tokens; at most {facts.sampling.max_completion_tokens} are allowed"
    total = len(row.prompt_tokens) + len(row.completion_tokens)
    if total > facts.max_sequence_length:
        return f"{total} tokens of prompt and completion; at most {facts.max_sequence_length} are allowed"
    if not all(math.isfinite(value) and value <= ROUNDING for value in row.completion_logprobs):
        return "a completion_logprob is not a finite number of at most 0"
    if not any(row.completion_mask):
        return "completion_mask is false everywhere: nothing was sampled"
    for name in ("task_reward", "length_penalty", "reward"):
        value = getattr(row, name)
        if value is not None and not math.isfinite(value):
            return f"{name} is {value}"
    return None
