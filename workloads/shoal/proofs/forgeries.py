"""Proofs made without a forward pass, as controls of a calibration: what somebody writes who only knows what states usually look like.

In: states of sequences that the forger has seen, and of others that he must prove. Out: points of his proofs, one set for each chunk, which are
interpolated like honest ones. Called by `calibration`. The forger knows the mask, as anybody does.
"""

from collections.abc import Sequence

import numpy as np

from shoal.proofs.chunks import Chunks, Points, points_of
from shoal.proofs.masking import PATTERNS
from shoal.toploc import codec
from shoal.toploc.top_points import TOP_K, Bool, Float32, Int64


def dimension_prior(seen: Sequence[Float32], masked: Bool | None, chunks: Chunks) -> Points:
    """Each dimension's usual bits, at the dimensions that are most often chosen with them: as many as make 128 values."""
    hidden_size = seen[0].shape[1]
    indices, bits = points_of(seen, masked)
    dimension, value = (indices % hidden_size).reshape(-1), bits.astype(np.int64).reshape(-1)
    counts = np.bincount(dimension * PATTERNS + (value >> 7), minlength=hidden_size * PATTERNS)
    counts = counts.reshape(hidden_size, PATTERNS)
    usual = counts.argmax(axis=1)
    # The mean mantissa among values of the usual sign and exponent is the best single guess.
    agrees = (value >> 7) == usual[dimension]
    sums = np.bincount(dimension[agrees], weights=value[agrees] & 0x7F, minlength=hidden_size)
    mantissa = np.rint(sums / np.maximum(1, counts.max(axis=1))).astype(np.int64)
    guess = (usual << 7) | mantissa
    order = np.argsort(-counts.max(axis=1), kind="stable")
    points: dict[int, tuple[Int64, Int64]] = {}
    for tokens in np.unique(chunks.tokens).tolist():
        # The best dimension at all tokens, then the next, until there are 128 values.
        flat = (np.arange(tokens)[None] * hidden_size + order[:, None]).reshape(-1)[:TOP_K]
        flat.sort()
        points[tokens] = flat, guess[flat % hidden_size]
    chosen = [points[tokens] for tokens in chunks.tokens.tolist()]
    return np.stack([flat for flat, _ in chosen]), np.stack([value for _, value in chosen]).astype(np.uint16)


def token_prior(
    seen: Sequence[Float32],
    seen_tokens: Sequence[Sequence[int]],
    given_tokens: Sequence[Sequence[int]],
    masked: Bool | None,
) -> Points:
    """The mean state after each token, from a table: what a model of a single lookup would compute.

    `seen_tokens` and `given_tokens` are, for each row of states, the token that the model read last.
    """
    everything = np.concatenate(seen)
    mean = everything.mean(axis=0)
    read = np.concatenate([np.asarray(tokens, dtype=np.int64) for tokens in seen_tokens])
    table: dict[int, Float32] = {token: everything[read == token].mean(axis=0) for token in np.unique(read).tolist()}
    return points_of([np.stack([table.get(token, mean) for token in tokens]) for tokens in given_tokens], masked)


def constants(honest: Points, chunks: int) -> codec.Proofs:
    """The most frequent pattern everywhere: a polynomial of degree 0, but for the smallest term that the parser lets through."""
    patterns, counts = np.unique(honest[1], return_counts=True)
    coefficients = np.zeros((chunks, TOP_K), dtype=np.int64)
    coefficients[:, 0] = patterns[counts.argmax()]
    coefficients[:, -1] = 1
    return codec.Proofs(np.full(chunks, codec.PRIME, dtype=np.int64), coefficients)


def low_degree(honest: Points) -> codec.Proofs:
    """Through half of the honest points only, padded like `constants`: knowing 64 of the 128 values must not do."""
    indices, bits = honest
    half = codec.interpolated(indices[:, ::2], bits[:, ::2])
    coefficients = np.zeros((len(indices), TOP_K), dtype=np.int64)
    coefficients[:, : TOP_K // 2] = half.coefficients
    coefficients[:, -1] = 1
    return codec.Proofs(half.moduli, coefficients)


def flipped(honest: Points) -> Points:
    """Honest points with all signs turned: what the published verifier does not see."""
    return honest[0], honest[1] ^ np.uint16(0x8000)
