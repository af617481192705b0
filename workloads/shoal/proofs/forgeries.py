"""Controls of a calibration: weights that a dishonest worker might serve, and proofs that it makes without a forward pass.

In: states of sequences that the forger has seen, and of others to be proven. Out: points of the forged proofs, one set for each chunk, which are
interpolated like honest ones. Called by `calibration`. The forger knows the mask, as anybody does.

`other_weights` changes a model in place and puts it back. Quantised weights are written back in the model's own type: what counts is the rounding.
An older version is the model one rollout step away: AdamW moves each weight by about the learning rate an update, here
in random directions. These hardly add up, and so are harder to tell from honest ones than a real step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shoal.models import rounded
from shoal.proofs.chunks import Chunks, Points, points_of
from shoal.proofs.masking import PATTERNS
from shoal.toploc import codec
from shoal.toploc.prime_field import PRIME
from shoal.toploc.top_points import TOP_K, Bool, Float32, Int64

OLDER = "one step older"
INT4_GROUP = 32  # weights that share a scale, as in GGUF's Q4_0
PIECE = 1 << 24  # weights that are changed together

Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""A weight and a source of chance on its device to another weight of the same shape and type."""


def int8(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Round to nearest with a scale for each output (LLM.int8's vector-wise scheme without its outliers, arXiv:2208.07339)."""
    return _rounded(weight, weight.shape[-1], 127)


def int4(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Round to nearest, 4 bits, a scale for 32 weights."""
    return _rounded(weight, INT4_GROUP if weight.shape[-1] % INT4_GROUP == 0 else weight.shape[-1], 7)


def fp8(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """As quantised rollouts have them, e4m3 with a scale for each output."""
    return rounded.fp8(weight)


def one_step_older(learning_rate: float, updates: int) -> Change:
    """Every weight moved by `learning_rate` up or down, `updates` times."""

    def change(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
        moved = torch.empty_like(weight, memory_format=torch.contiguous_format)
        # In pieces: a GPU has no room for an embedding in float32.
        for old, new in zip(weight.reshape(-1).split(PIECE), moved.view(-1).split(PIECE), strict=True):
            new.copy_(old.float() + learning_rate * steps(old.numel(), updates, chance).float())
        return moved

    return change


def steps(count: int, updates: int, chance: torch.Generator) -> torch.Tensor:
    """`count` sums of `updates` draws from -1 and 1 each, int32: the bits of random bytes, counted."""
    ups = torch.zeros(count, dtype=torch.int32, device=chance.device)
    for done in range(0, updates, 8):
        bits = torch.empty(count, dtype=torch.uint8, device=chance.device).random_(0, 256, generator=chance)
        bits &= (1 << min(8, updates - done)) - 1
        bits -= (bits >> 1) & 0x55
        bits = (bits & 0x33) + ((bits >> 2) & 0x33)
        ups += (bits + (bits >> 4)) & 0x0F
    return 2 * ups - updates


def changes(learning_rate: float, updates: int) -> Mapping[str, Change]:
    """All of them by name."""
    return {OLDER: one_step_older(learning_rate, updates), "int8": int8, "fp8": fp8, "int4": int4}


@contextmanager
def other_weights(model: Any, name: str, change: Change, seed: int) -> Iterator[None]:
    """The model with changed weights, of all parameters for an older version, of the layers' matrices otherwise; the right ones are back after it."""
    chances: dict[torch.device, torch.Generator] = {}
    kept: dict[str, torch.Tensor] = {}
    try:
        for key, parameter in model.model.named_parameters():
            quantised = parameter.dim() == 2 and "embed" not in key
            if name == OLDER or quantised:
                kept[key] = parameter.data.cpu()  # a GPU has no room for both
                where = parameter.device
                if where not in chances:
                    chances[where] = torch.Generator(where).manual_seed(seed + len(chances))
                parameter.data = change(parameter.data, chances[where])
        yield
    finally:
        for key, parameter in model.model.named_parameters():
            if key in kept:
                parameter.data = kept.pop(key).to(parameter.device)


def _rounded(weight: torch.Tensor, group: int, levels: int) -> torch.Tensor:
    grouped = weight.float().reshape(-1, group)
    scale = grouped.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / levels
    return ((grouped / scale).round().clamp(-levels, levels) * scale).reshape(weight.shape).to(weight.dtype)


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
    """The most frequent pattern everywhere: a polynomial of degree 0, except for the smallest term that the parser lets through."""
    patterns, counts = np.unique(honest[1], return_counts=True)
    coefficients = np.zeros((chunks, TOP_K), dtype=np.int64)
    coefficients[:, 0] = patterns[counts.argmax()]
    coefficients[:, -1] = 1
    return codec.Proofs(np.full(chunks, PRIME, dtype=np.int64), coefficients)


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
