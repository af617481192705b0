"""One completion handed in as several samples. (The same file twice never gets here: the orchestrator knows files by
their digest.)

Two samples of a group may honestly be equal when the policy is sure of its answer. They may not when that answer was
improbable: the chance of drawing it again is the product of its tokens' probabilities, which the row itself claims
(and `token_sampling` compares with ours).

A continuation that says the same as what it continues, or as another from there, is the same case: whole sequences are compared, and the chance is
that of the tokens that the later row sampled by itself.
"""

from shoal.validation.facts import File, Finding, reject

LEAST_LOG_PROBABILITY = -20.0
"""Natural logarithm of the least chance (2e-9) at which an equal second sample is believed. With the 480 pairs of
four groups of 16, an honest file is rejected once in a million; each completion with twelve continuations adds 78 pairs, and makes it ten."""


def check(file: File) -> Finding | None:
    """Look for equal, improbable completions within each group, continuations among them."""
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    for number, row in enumerate(file.rows):
        key = (row.prompt_index, (*row.prompt_tokens, *row.completion_tokens))
        first = seen.setdefault(key, number)
        log_probability = sum(row.completion_logprobs)
        if first != number and log_probability < LEAST_LOG_PROBABILITY:
            return reject(
                "replay",
                f"rows {first} and {number} are the same completion, whose log-probability is {log_probability:.1f}",
            )
    return None
