"""Every token is the one that the row's seed draws from the claimed policy: the sampler's choices, made again.

The paper checks the distribution of the chosen tokens' probabilities (INTELLECT-2, section 2.3.2); where the run's
engine draws with noise that a seed determines, there is a stronger check: given weights, prompt and seed, there is one
completion, and any other is wrong. It shows another seed, the best of several samples, a colder sampler, an early or
improbable end in one row, tokens that a smaller model wrote, and tokens changed at the end, where no hidden state
depends on them.

Whether it can be made is the run's configuration to say (`ValidationJob.sampler`), never the worker's. What rounding
may do is bounded: where two tokens are nearly equal, an engine and we may differ, so that the claimed token may be
behind by twice the difference of log-probabilities. It rests on a tolerance, so it slashes only when a second
check finds the same.
"""

from collections.abc import Mapping

import numpy as np

from shoal.validation.facts import File, Finding, reject
from shoal.validation.prefill import Prefill
from shoal.validation.samplers import TOLERANCE_NATS


def check(file: File, prefills: Mapping[int, Prefill], dtype: str) -> Finding | None:
    """The rows in `prefills` (by row number) are what their seeds draw, by weights of this dtype; nothing to say where
    the sampler cannot be redone.
    """
    for number, ours in prefills.items():
        if ours.gaps is None or ours.drawn is None:
            continue
        # `sampling` has seen that the row's temperature is the run's.
        tolerance = TOLERANCE_NATS[dtype] / min(1.0, file.rows[number].temperature)
        behind = np.flatnonzero(~(ours.gaps <= tolerance))
        if behind.size:
            first, row = int(behind[0]), file.rows[number]
            place = int(np.flatnonzero(row.completion_mask)[first])
            return reject(
                "redraw",
                f"row {number}: {behind.size} of {ours.gaps.size} tokens are not what seed {row.seed} draws "
                f"from version {file.policy_version}; the first is token {place}: {row.completion_tokens[place]} is "
                f"claimed, drawn is {int(ours.drawn[first])}, {float(ours.gaps[first]):.3g} nats ahead (allowed "
                f"{tolerance:g})",
            )
    return None
