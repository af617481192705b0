"""TOPLOC proofs: 258 bytes that commit to the last hidden states of 32 decoded tokens.

In goes the float32 matrix of last hidden states of a completion (one row for each sampled token: the state, after the
final norm, from which that token was drawn). Out come proof bytes (`encode`), which rollout workers put into their
files, or, for a proof that somebody sent, its distance from states that we computed ourselves (`parse`, `compare`),
which validators judge.

A chunk is up to 32 rows, flattened. Its proof is a polynomial over GF(65497) through 128 points: x is the flat index
of one of the 128 largest absolute values (modulo a modulus under which no two of these indices collide), y is that
value's bfloat16 bit pattern. The bytes are those of the published format (TOPLOC, arXiv:2501.16007, section 4;
package `toploc` 0.1): the modulus and 128 coefficients, lowest degree first, each a big-endian unsigned 16-bit
number.

The parser accepts only what an honest prover can write. This is a part of the security of the scheme: the published
reader accepts a polynomial of any degree, and a constant passes for most real chunks, since all 128 values share few
exponents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.contracts.recipe import ProofThresholds

PRIME = 65497  # of the published format; only patterns of negative NaNs, which no state has, lie above it
MIN_MODULUS = 32768  # where the published search for an injective modulus ends
CHUNK_TOKENS = 32  # decoded tokens of a proof (paper, section 5: 258 bytes for 32 tokens)
TOP_K = 128  # values of a proof (paper, section 5)
PROOF_BYTES = 2 + 2 * TOP_K
# 128 honest points have an interpolating polynomial of degree 127 but for one case in 65497, and of at least 126 but
# for one in 4e9.
MIN_DEGREE = TOP_K - 2

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt16 = npt.NDArray[np.uint16]


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


def accept(errors: ProofErrors, thresholds: ProofThresholds) -> bool:
    """Whether every error is within its bound.

    A wrong sign counts as an exponent mismatch: the published verifier ignores signs and so gives away one bit a point.
    """
    return (
        errors.exponent_mismatches + errors.sign_mismatches <= thresholds.max_exponent_mismatches
        and errors.mantissa_error_mean <= thresholds.max_mantissa_error_mean
        and errors.mantissa_error_median <= thresholds.max_mantissa_error_median
    )


def proof_count(tokens: int) -> int:
    """Number of proofs of a completion of `tokens` tokens."""
    return -(-tokens // CHUNK_TOKENS)


def encode(hidden: Float32) -> bytes:
    """Proofs of one completion, end to end.

    `hidden`: float32 [tokens, hidden size >= 128]. Returns `proof_count(tokens)` times 258 bytes. Raises ValueError
    for states that are not finite (the model is broken, there is nothing to prove), for too small a model, and for
    indices without an injective modulus.
    """
    return prove([top_points(chunk) for chunk in _chunks(hidden)])


def prove(points: Sequence[tuple[Int64, UInt16]]) -> bytes:
    """Proofs of chunks whose `top_points` are known, 258 bytes each, in order.

    One call for many chunks costs little more than for one: all polynomials are interpolated together.
    """
    if not points:
        return b""
    moduli = np.array([injective_modulus(indices) for indices, _ in points], dtype=np.int64)
    x = np.stack([indices for indices, _ in points]) % moduli[:, None]
    y = np.stack([bits for _, bits in points]).astype(np.int64)
    words = np.concatenate([moduli[:, None], interpolate(x, y)], axis=1)
    return words.astype(">u2").tobytes()


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
    for chunk in range(chunks):
        elements = min(CHUNK_TOKENS, tokens - chunk * CHUNK_TOKENS) * hidden_size
        # Indices below the prime are distinct under the first modulus that is tried, so that an honest search ends
        # there.
        lowest = PRIME if elements <= PRIME else MIN_MODULUS
        if not lowest <= moduli[chunk] <= PRIME:
            raise MalformedProofError(f"proof {chunk}: modulus {moduli[chunk]}, allowed is {lowest} to {PRIME}")
        if int(coefficients[chunk].max()) >= PRIME:
            largest = coefficients[chunk].max()
            raise MalformedProofError(f"proof {chunk}: a coefficient of {largest} is outside GF({PRIME})")
        if not coefficients[chunk, MIN_DEGREE:].any():
            raise MalformedProofError(f"proof {chunk}: the polynomial's degree is below {MIN_DEGREE}")
    return Proofs(moduli, coefficients)


def compare(proofs: Proofs, hidden: Float32) -> list[ProofErrors]:
    """Errors of every proof against our own last hidden states, float32 [tokens, hidden size], of the same tokens.

    Raises ValueError when our own states are not finite or do not fit the number of proofs: a fault of the caller,
    not of the prover.
    """
    chunks = _chunks(hidden)
    if len(chunks) != len(proofs.moduli):
        raise ValueError(f"{len(proofs.moduli)} proofs, but the states of {len(hidden)} tokens make {len(chunks)}")
    if not chunks:
        return []
    points = [top_points(chunk) for chunk in chunks]
    x = np.stack([indices for indices, _ in points]) % proofs.moduli[:, None]
    claimed = evaluate(proofs.coefficients, x)
    ours = np.stack([bits for _, bits in points]).astype(np.int64)
    return [_errors(mine, theirs) for mine, theirs in zip(ours, claimed, strict=True)]


def top_points(chunk: Float32) -> tuple[Int64, UInt16]:
    """The 128 largest of |chunk|: flat indices int64 [128], ascending, and bfloat16 bit patterns uint16 [128].

    `chunk`: float32 [elements >= 128]. Of equal values the lowest index is taken, so that prover and verifier agree
    at the border.
    """
    if chunk.size < TOP_K:
        raise ValueError(f"a chunk of {chunk.size} values has no proof: the hidden size must be at least {TOP_K}")
    if not np.isfinite(chunk).all():
        raise ValueError("last hidden states are not finite")
    magnitude = np.abs(chunk)
    border = np.partition(magnitude, chunk.size - TOP_K)[chunk.size - TOP_K]
    above = np.flatnonzero(magnitude > border)
    at_border = np.flatnonzero(magnitude == border)[: TOP_K - above.size]
    indices = np.sort(np.concatenate([above, at_border])).astype(np.int64)
    return indices, bfloat16_bits(chunk[indices])


def bfloat16_bits(values: Float32) -> UInt16:
    """Bit patterns of finite float32 values rounded to bfloat16, to nearest and ties to even, as torch rounds."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def injective_modulus(indices: Int64) -> int:
    """The largest number from 65497 down to 32768 under which the indices stay distinct, as the published search
    finds it.
    """
    for modulus in range(PRIME, MIN_MODULUS - 1, -1):
        if np.unique(indices % modulus).size == indices.size:
            return modulus
    raise ValueError(f"no modulus between {MIN_MODULUS} and {PRIME} keeps these {indices.size} indices distinct")


def interpolate(x: Int64, y: Int64) -> Int64:
    """Coefficients of the polynomials over GF(65497) through (x, y), lowest degree first.

    `x`, `y`: int64 [polynomials, points], x distinct within a row and below the prime. Returns int64 of the same
    shape. Newton's divided differences, then Horner's expansion; every step works on all polynomials at once.
    Products stay below 2**32.
    """
    count = x.shape[1]
    differences = y % PRIME
    for order in range(1, count):
        run = _INVERSES[(x[:, order:] - x[:, :-order]) % PRIME]
        differences[:, order:] = (differences[:, order:] - differences[:, order - 1 : -1]) * run % PRIME
    coefficients = np.zeros_like(differences)
    coefficients[:, 0] = differences[:, -1]
    for point in range(count - 2, -1, -1):
        shifted = np.roll(
            coefficients, 1, axis=1
        )  # the top coefficient is still zero here, so the roll brings a zero in
        coefficients = (shifted - coefficients * x[:, point : point + 1]) % PRIME
        coefficients[:, 0] = (coefficients[:, 0] + differences[:, point]) % PRIME
    return coefficients


def evaluate(coefficients: Int64, x: Int64) -> Int64:
    """Values over GF(65497), int64 [polynomials, points], of polynomials [polynomials, degree + 1] at x [polynomials,
    points].
    """
    values = np.zeros_like(x)
    for power in range(coefficients.shape[1] - 1, -1, -1):
        values = (values * x + coefficients[:, power : power + 1]) % PRIME
    return values


def _chunks(hidden: Float32) -> list[Float32]:
    if hidden.ndim != 2 or hidden.dtype != np.float32:
        given = f"{hidden.dtype} of shape {hidden.shape}"
        raise ValueError(f"hidden states must be float32 [tokens, hidden size], not {given}")
    return [hidden[start : start + CHUNK_TOKENS].reshape(-1) for start in range(0, len(hidden), CHUNK_TOKENS)]


def _errors(ours: Int64, claimed: Int64) -> ProofErrors:
    """Errors of one chunk from bfloat16 patterns: 1 sign bit, 8 of exponent, 7 of mantissa."""
    same_exponent = (ours & 0x7F80) == (claimed & 0x7F80)
    mantissa_errors = np.abs((ours & 0x7F) - (claimed & 0x7F))[same_exponent]
    return ProofErrors(
        exponent_mismatches=int((~same_exponent).sum()),
        sign_mismatches=int(((ours ^ claimed)[same_exponent] >> 15 & 1).sum()),
        mantissa_error_mean=float(mantissa_errors.mean()) if mantissa_errors.size else float("inf"),
        mantissa_error_median=float(np.median(mantissa_errors)) if mantissa_errors.size else float("inf"),
    )


def _inverse_table() -> Int64:
    """Inverses of GF(65497) by Fermat's little theorem, x**(p-2), all at once; the inverse of 0 reads 0 and is never
    used.
    """
    base, power, result = np.arange(PRIME, dtype=np.int64), PRIME - 2, np.ones(PRIME, dtype=np.int64)
    while power:
        if power & 1:
            result = result * base % PRIME
        base, power = base * base % PRIME, power >> 1
    return result


_INVERSES = _inverse_table()
