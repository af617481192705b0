"""Which dimensions of a model say nothing: their bits in a proof can be written down without a forward pass.

In: last hidden states of a model. Out: its masked dimensions. Called by `calibration`. Models have a few massive outlier dimensions. Where these
hardly vary, they are all that the largest 128 values of a chunk consist of. A list of the usual values per dimension passes as a proof.

The rule looks at what such a forger can win. A
dimension's predictability is the share of tokens at which its value is among the 128, with the sign and exponent that it usually has. To pass the
published thresholds a forger must know 90 of the 128 values, 0.70 of them; the best choice for 32 tokens are the four most predictable dimensions.
So a dimension is masked from half of that on, 0.35. Since others take its place among the 128: the remaining ones are looked at again until none is
left, or half of all dimensions are masked.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.contracts.proof_profile import MOST_MASKED
from shoal.contracts.thresholds import ProofThresholds
from shoal.proofs.chunks import points_of
from shoal.toploc.codec import CHUNK_TOKENS
from shoal.toploc.top_points import TOP_K, Float32

PREDICTABLE = (TOP_K - ProofThresholds().max_exponent_mismatches) / TOP_K / 2
"""Half the share of values that a forger must know: 0.35."""
PATTERNS = 1 << 9  # of sign and exponent in bfloat16
WHOLE_CHUNKS = 8
"""Full chunks from which on shorter ones are left out: in those more dimensions are chosen, and each looks more predictable than it is."""


def masked_dimensions(states: Sequence[Float32]) -> list[int]:
    """Dimensions to mask, ascending, from states [tokens, hidden size] of sequences that the model wrote itself."""
    whole = [each[: len(each) - len(each) % CHUNK_TOKENS] for each in states if len(each) >= CHUNK_TOKENS]
    if sum(len(each) // CHUNK_TOKENS for each in whole) >= WHOLE_CHUNKS:
        states = whole
    hidden_size = states[0].shape[1]
    masked = np.zeros(hidden_size, dtype=np.bool_)
    room = int(MOST_MASKED * hidden_size)
    while room:
        shares = predictability(states, masked)
        found = np.argsort(-shares, kind="stable")[: min(room, int((shares >= PREDICTABLE).sum()))]
        if not len(found):
            break
        masked[found] = True
        room -= len(found)
    return [int(place) for place in np.flatnonzero(masked)]


def predictability(states: Sequence[Float32], masked: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """For each dimension the share of tokens at which it is chosen and has its usual sign and exponent, float64 [hidden size]; 0 for masked ones."""
    indices, bits = points_of(states, masked)
    dimension, pattern = indices % len(masked), bits.astype(np.int64) >> 7
    counts = np.bincount((dimension * PATTERNS + pattern).reshape(-1), minlength=len(masked) * PATTERNS)
    usual = counts.reshape(len(masked), PATTERNS).max(axis=1)
    return np.where(masked, 0.0, usual / sum(len(each) for each in states))
