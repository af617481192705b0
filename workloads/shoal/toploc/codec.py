"""TOPLOC proofs: 258 bytes that commit to the last hidden states of 32 decoded tokens.

In goes the float32 matrix of last hidden states of a completion (one row for each sampled token: the state, after the
final norm, from which that token was drawn). Out come proof bytes (`encode`), which rollout workers put
into their files; or, for a proof that somebody sent, its distance from states that we computed ourselves (`parse`, `compare`),
which validators judge. `top_points` says which values a proof is made of, `prime_field` does the arithmetic,
`proof_profile` holds what is calibrated for a model: masked dimensions and thresholds.

A chunk is up to 32 rows, flattened. Its proof is a polynomial over GF(65497) through 128 points: x is the flat index
of one of the 128 largest absolute values, taken modulo a modulus under which no two of these indices collide; y is that
value's bfloat16 bit pattern. The bytes are those of the published format (TOPLOC, arXiv:2501.16007, section 4;
package `toploc` 0.1): the modulus and 128 coefficients, lowest degree first, each a big-endian unsigned 16-bit
number.

The parser accepts only what an honest prover can write. This is a part of the security of the scheme: the published
reader accepts a polynomial of any degree, and a constant passes for most real chunks, since all 128 values share few
exponents.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.contracts.thresholds import ProofThresholds
from shoal.toploc.prime_field import PRIME, evaluate, interpolate
from shoal.toploc.top_points import TOP_K, Bool, Int64, States, UInt16, top_points

MIN_MODULUS = 32768  # where the published search for an injective modulus ends
CHUNK_TOKENS = 32  # decoded tokens of a proof (paper, section 5: 258 bytes for 32 tokens)
PROOF_BYTES = 2 + 2 * TOP_K
# 128 honest points have an interpolating polynomial of degree 127 except for one case in 65497, and of at least 126 but
# for one in 4e9.
MIN_DEGREE = TOP_K - 2
NOT_FINITE = 0x7F80  # bfloat16's infinity without its sign; NaNs lie above

Float64 = npt.NDArray[np.float64]


class MalformedProofError(ValueError):
    """The bytes are not what any honest prover writes; the message says which rule they break."""


@dataclass(frozen=True)
class Proofs:
    """Parsed proofs of one completion: `moduli` int64 [chunks], `coefficients` int64 [chunks, 128], lowest degree
    first.
    """

    moduli: Int64
    coefficients: Int64


@dataclass(frozen=True)
class ProofErrors:
    """How far one chunk's proof is from our own states. All are errors: larger is worse.

    `exponent_mismatches` counts points, of 128, and `sign_mismatches` those whose exponent agrees but whose sign does
    not. The mantissa errors (units of the 7-bit mantissa) are over the points whose exponent agrees, and infinite
    when there is none.
    """

    exponent_mismatches: int
    sign_mismatches: int
    mantissa_error_mean: float
    mantissa_error_median: float


@dataclass(frozen=True)
class ErrorTable:
    """`ProofErrors` of many chunks, a column each: counts int64 [chunks], mantissa errors float64 [chunks]."""

    exponent_mismatches: Int64
    sign_mismatches: Int64
    mantissa_error_mean: Float64
    mantissa_error_median: Float64

    def __len__(self) -> int:
        return len(self.exponent_mismatches)

    def rows(self) -> list[ProofErrors]:
        """The same, one object a chunk."""
        columns = (
            self.exponent_mismatches, self.sign_mismatches, self.mantissa_error_mean, self.mantissa_error_median,
        )  # fmt: skip
        return [ProofErrors(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def accepted(self, thresholds: ProofThresholds) -> Bool:
        """`accept` for each chunk, bool [chunks]."""
        return (
            (self.exponent_mismatches + self.sign_mismatches <= thresholds.max_exponent_mismatches)
            & (self.mantissa_error_mean <= thresholds.max_mantissa_error_mean)
            & (self.mantissa_error_median <= thresholds.max_mantissa_error_median)
        )


def accept(errors: ProofErrors, thresholds: ProofThresholds) -> bool:
    """Whether every error is within its bound.

    A wrong sign counts as an exponent mismatch: the published verifier ignores signs and so gives away one bit a point.
    """
    return (
        errors.exponent_mismatches + errors.sign_mismatches <= thresholds.max_exponent_mismatches
        and errors.mantissa_error_mean <= thresholds.max_mantissa_error_mean
        and errors.mantissa_error_median <= thresholds.max_mantissa_error_median
    )


def file_mean_allowed(thresholds: ProofThresholds, chunks: int, chance: float) -> float:
    """The largest mean of `mantissa_error_mean` over `chunks` chunks of a file (at least one); infinite where no bound is set.

    An honest file's exceeds it with at most `chance`, whatever the distribution; this holds if its chunks' errors are independent and have at most
    the mean and deviation of the bound; and if none is beyond their own threshold (Bernstein's inequality; Boucheron, Lugosi and Massart,
    Concentration Inequalities, 2013, theorem 2.10).
    """
    if thresholds.file_mean is None:
        return math.inf
    each = math.log(1 / chance) / chunks
    scatter = thresholds.file_mean.deviation * math.sqrt(2 * each) + thresholds.max_mantissa_error_mean * each / 3
    return thresholds.file_mean.bound + scatter


def proof_count(tokens: int) -> int:
    """Number of proofs of a completion of `tokens` tokens."""
    return -(-tokens // CHUNK_TOKENS)


def encode(hidden: States, masked: Bool | None = None) -> bytes:
    """Proofs of one completion, end to end.

    `hidden`: float32, or uint16 with the bits of bfloat16, [tokens, hidden size >= 128]; `masked`: bool [hidden size],
    from the model's proof profile. Returns `proof_count(tokens)` times 258 bytes. Raises ValueError for states that are not finite (the model is
    broken, there is nothing to prove); for too small a model, and for indices without an injective modulus.
    """
    return b"".join(prove(*top_points(part, masked)) for part in _chunks(hidden, masked))


def prove(indices: Int64, bits: UInt16) -> bytes:
    """Proofs of chunks whose `top_points` are known, 258 bytes each, in order.

    `indices` [chunks, 128], ascending in a row, and `bits` [chunks, 128]. One call for many chunks costs far less
    than many calls: all polynomials are interpolated together. Raises ValueError for values that are not finite.
    """
    proofs = interpolated(indices, bits)
    return np.asarray(np.hstack([proofs.moduli[:, None], proofs.coefficients]), dtype=">u2").tobytes()


def interpolated(indices: Int64, bits: UInt16) -> Proofs:
    """`prove` before it is written down."""
    _check_finite(bits)
    moduli = np.full(len(indices), PRIME, dtype=np.int64)
    for chunk in np.flatnonzero(indices[:, -1] >= PRIME):  # others are distinct under the first modulus that is tried
        moduli[chunk] = injective_modulus(indices[chunk])
    return Proofs(moduli, interpolate(indices % moduli[:, None], bits.astype(np.int64)))


def parse(data: bytes, tokens: int, hidden_size: int) -> Proofs:
    """Read the proofs of a completion of `tokens` tokens by a model of width `hidden_size`, or raise
    MalformedProofError.

    Never raises anything else, whatever the bytes.
    """
    chunks = proof_count(tokens)
    if len(data) != chunks * PROOF_BYTES:
        raise MalformedProofError(
            f"{len(data)} bytes of proofs for {tokens} tokens: {chunks} proofs of {PROOF_BYTES} bytes "
            f"are {chunks * PROOF_BYTES}"
        )
    words = np.frombuffer(data, dtype=">u2").astype(np.int64).reshape(chunks, 1 + TOP_K)
    moduli, coefficients = words[:, 0], words[:, 1:]
    elements = np.full(chunks, CHUNK_TOKENS * hidden_size)
    if tokens % CHUNK_TOKENS:
        elements[-1] = tokens % CHUNK_TOKENS * hidden_size
    # Indices below the prime are distinct under the first modulus that is tried, so that an honest search ends there.
    lowest = np.where(elements <= PRIME, PRIME, MIN_MODULUS)
    in_range = (moduli >= lowest) & (moduli <= PRIME)
    in_field = coefficients.max(axis=1, initial=0) < PRIME
    full_degree = coefficients[:, MIN_DEGREE:].any(axis=1)
    if not (in_range & in_field & full_degree).all():
        chunk = int(np.argmin(in_range & in_field & full_degree))
        if not in_range[chunk]:
            allowed = f"allowed: {lowest[chunk]} to {PRIME}"
            raise MalformedProofError(f"proof {chunk}: modulus {moduli[chunk]}, {allowed}")
        if not in_field[chunk]:
            largest = coefficients[chunk].max()
            raise MalformedProofError(f"proof {chunk}: a coefficient of {largest} is outside GF({PRIME})")
        raise MalformedProofError(f"proof {chunk}: the polynomial's degree is below {MIN_DEGREE}")
    return Proofs(moduli, coefficients)


def compare(proofs: Proofs, hidden: States, masked: Bool | None = None) -> list[ProofErrors]:
    """Errors of every proof against our own last hidden states of the same tokens, given as to `encode`.

    `masked` as the prover was to have it. Raises ValueError when our own states are not finite or do not fit the
    number of proofs: a fault of the caller, not of the prover.
    """
    return error_table(proofs, hidden, masked).rows()


def error_table(proofs: Proofs, hidden: States, masked: Bool | None = None) -> ErrorTable:
    """`compare`, as columns."""
    parts = [top_points(part, masked) for part in _chunks(hidden, masked)]
    if sum(len(indices) for indices, _ in parts) != len(proofs.moduli):
        chunks = proof_count(len(hidden))
        raise ValueError(f"{len(proofs.moduli)} proofs, but the states of {len(hidden)} tokens make {chunks}")
    if not parts:
        return _errors(np.zeros((0, TOP_K), dtype=np.int64), np.zeros((0, TOP_K), dtype=np.int64))
    indices = np.concatenate([indices for indices, _ in parts])
    bits = np.concatenate([bits for _, bits in parts])
    return compare_points(proofs, indices, bits)


def compare_points(proofs: Proofs, indices: Int64, bits: UInt16) -> ErrorTable:
    """Errors of every proof against `top_points` of our own chunks, [chunks, 128] each."""
    _check_finite(bits)
    claimed = evaluate(proofs.coefficients, indices % proofs.moduli[:, None])
    return _errors(bits.astype(np.int64), claimed)


def injective_modulus(indices: Int64) -> int:
    """The largest number from 65497 down to 32768 under which the indices stay distinct, as the published search
    finds it.
    """
    for modulus in range(PRIME, MIN_MODULUS - 1, -1):
        if np.unique(indices % modulus).size == indices.size:
            return modulus
    raise ValueError(f"no modulus between {MIN_MODULUS} and {PRIME} keeps these {indices.size} indices distinct")


def _chunks(hidden: States, masked: Bool | None) -> list[States]:
    """The full chunks together, [chunks, 32 * hidden size], and the rest, [1, fewer]; neither if there is none."""
    if hidden.ndim != 2 or hidden.dtype not in (np.float32, np.uint16):
        given = f"{hidden.dtype} of shape {hidden.shape}"
        raise ValueError(
            f"hidden states must be float32 [tokens, hidden size], or uint16 with bfloat16's bits, not {given}"
        )
    if masked is not None and masked.shape != hidden.shape[1:]:
        raise ValueError(
            f"a mask of shape {masked.shape} for states of width {hidden.shape[1]}: it needs one bool for each dimension"
        )
    full = len(hidden) - len(hidden) % CHUNK_TOKENS
    parts = [hidden[:full].reshape(-1, CHUNK_TOKENS * hidden.shape[1]), hidden[full:].reshape(1, -1)]
    return [part for part in parts if part.size]


def _check_finite(bits: UInt16) -> None:
    if ((bits & 0x7FFF) >= NOT_FINITE).any():
        raise ValueError("last hidden states are not finite")


def _errors(ours: Int64, claimed: Int64) -> ErrorTable:
    """Errors of chunks from bfloat16 patterns [chunks, 128]: 1 sign bit, 8 of exponent, 7 of mantissa."""
    difference = ours ^ claimed
    same_exponent = (difference & 0x7F80) == 0
    compared = same_exponent.sum(axis=1)
    mantissa_errors = np.where(same_exponent, np.abs((ours & 0x7F) - (claimed & 0x7F)), 0)
    # Sorted with what is not compared at the end, the middle of the others is their median.
    ranked = np.sort(np.where(same_exponent, mantissa_errors, 0x80).astype(np.uint8), axis=1).astype(np.float64)
    row = np.arange(len(ours))
    upper = np.minimum(compared // 2, TOP_K - 1)
    median = (ranked[row, np.maximum(compared - 1, 0) // 2] + ranked[row, upper]) / 2
    none = compared == 0
    return ErrorTable(
        exponent_mismatches=TOP_K - compared,
        sign_mismatches=(same_exponent & (difference > 0x7FFF)).sum(axis=1),
        mantissa_error_mean=np.where(none, np.inf, mantissa_errors.sum(axis=1) / np.maximum(compared, 1)),
        mantissa_error_median=np.where(none, np.inf, median),
    )
