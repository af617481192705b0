"""Proofs that nobody honest writes: 100,000 fuzzed ones, masks that a forger cannot profit from, signs that count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.contracts.thresholds import ProofThresholds
from shoal.toploc import codec
from shoal.toploc.codec import MalformedProofError, ProofErrors, Proofs
from shoal.toploc.top_points import top_points

PUBLISHED = ProofThresholds()
HIDDEN = 256
FUZZED = 100_000


def states(tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, HIDDEN)).astype(np.float32)


def fuzzed(random: np.random.Generator, honest: bytes) -> bytes:
    """Something near a proof: random bytes, random coefficients under the right modulus, or an honest proof that was tampered with.

    Its constant term alone stays: a little more there is a little more everywhere, which is what tolerances are for.
    """
    words = np.frombuffer(honest, dtype=">u2").copy()
    kind = int(random.integers(8))
    match kind:
        case 0:
            return random.bytes(258)
        case 1:  # right modulus, any coefficients of the field
            words[1:] = random.integers(0, codec.PRIME, 128)
        case 2:  # one coefficient of the honest proof changed
            place = 2 + int(random.integers(127))
            words[place] = (int(words[place]) + 1 + int(random.integers(codec.PRIME - 1))) % codec.PRIME
        case 3:  # some bits flipped
            data = bytearray(honest)
            for bit in random.integers(8 * 4, 8 * 258, int(random.integers(1, 9))):
                data[bit // 8] ^= 1 << bit % 8
            return bytes(data)
        case 4:  # the polynomial cut short, with a smallest term at the end
            words[1 + int(random.integers(128)) :] = 0
            words[-1] = 1
        case 5:  # a constant and a top term
            words[1:] = 0
            words[1], words[-1] = random.integers(0x3F00, 0x4100), random.integers(1, codec.PRIME)
        case 6:  # coefficients in another order
            words[1:] = random.permutation(words[1:])
        case 7:
            return honest[: int(random.integers(258))] + random.bytes(int(random.integers(3)))
    return words.tobytes()


def test_of_100_000_fuzzed_proofs_none_crashes_and_none_is_accepted() -> None:
    random = np.random.default_rng(0)
    hidden = states(32)
    honest = codec.encode(hidden)
    parsed: list[Proofs] = []
    refused = 0
    for _ in range(FUZZED):
        data = fuzzed(random, honest)
        if data == honest:
            continue
        try:
            parsed.append(codec.parse(data, 32, HIDDEN))
        except MalformedProofError:
            refused += 1
    together = Proofs(
        np.concatenate([proof.moduli for proof in parsed]), np.concatenate([proof.coefficients for proof in parsed])
    )
    indices, bits = top_points(hidden.reshape(1, -1))
    everywhere = len(together.moduli)
    errors = codec.compare_points(together, np.repeat(indices, everywhere, axis=0), np.repeat(bits, everywhere, axis=0))
    assert not errors.accepted(PUBLISHED).any()
    assert refused > FUZZED // 5  # the parser did its part ...
    assert everywhere > FUZZED // 3  # ... and the comparison had something to refuse
    assert codec.error_table(codec.parse(honest, 32, HIDDEN), hidden).accepted(PUBLISHED).all()


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 70),
    seed=st.integers(0, 1000),
    grain=st.sampled_from([None, 4]),
    share=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
)
def test_whatever_is_built_verifies_exactly_under_its_mask(
    tokens: int, seed: int, grain: int | None, share: float
) -> None:
    hidden = states(tokens, seed)
    if grain is not None:
        hidden = np.round(hidden * grain) / np.float32(grain)
    masked = np.random.default_rng(seed).random(HIDDEN) < share
    proofs = codec.parse(codec.encode(hidden, masked), tokens, HIDDEN)
    assert codec.compare(proofs, hidden, masked) == [ProofErrors(0, 0, 0.0, 0.0)] * codec.proof_count(tokens)


@settings(max_examples=30, deadline=None)
@given(flips=st.integers(0, 128), seed=st.integers(0, 1000))
def test_each_turned_sign_counts(flips: int, seed: int) -> None:
    hidden = states(32, seed)
    indices, _ = top_points(hidden.reshape(1, -1))
    turned = hidden.reshape(-1).copy()
    turned[indices[0, :flips]] *= -1
    proofs = codec.parse(codec.encode(turned.reshape(32, HIDDEN)), 32, HIDDEN)
    errors = codec.compare(proofs, hidden)[0]
    assert (errors.exponent_mismatches, errors.sign_mismatches) == (0, flips)
    assert codec.accept(errors, PUBLISHED) == (flips <= 38)


def outliers(tokens: int, seed: int) -> np.ndarray:
    """States of which four dimensions are large and hardly vary, as those of large models."""
    hidden = states(tokens, seed)
    hidden[:, :4] = np.array([40.0, -50.0, 60.0, 70.0]) * (1 + 0.001 * hidden[:, :4])
    return hidden


def test_without_a_mask_a_list_of_outlier_dimensions_passes_and_with_it_nothing_of_it_is_left() -> None:
    forged, real = outliers(32, seed=1), outliers(32, seed=2)  # the forger knows the outliers and nothing else
    masked = np.arange(HIDDEN) < 4
    free = codec.compare(codec.parse(codec.encode(forged), 32, HIDDEN), real)[0]
    assert codec.accept(free, PUBLISHED)
    bound = codec.compare(codec.parse(codec.encode(forged, masked), 32, HIDDEN), real, masked)[0]
    assert bound.exponent_mismatches + bound.sign_mismatches > 100


def test_prover_and_verifier_must_use_the_same_mask() -> None:
    hidden, masked = outliers(32, seed=1), np.arange(HIDDEN) < 4
    errors = codec.compare(codec.parse(codec.encode(hidden, masked), 32, HIDDEN), hidden)[0]
    assert not codec.accept(errors, PUBLISHED)


def test_a_mask_of_another_width_is_a_mistake_with_words() -> None:
    with pytest.raises(ValueError, match=r"a mask of shape \(4,\) for states of width 256: it needs one bool for each"):
        codec.encode(states(3), np.zeros(4, dtype=bool))


def test_bfloat16_states_prove_as_the_same_numbers_in_float32() -> None:
    bits = top_points(states(40).reshape(1, -1))[1]  # any bfloat16 patterns will do
    short = np.tile(bits.reshape(-1), 80)[: 40 * HIDDEN].reshape(40, HIDDEN)
    long = (short.astype(np.uint32) << 16).view(np.float32)
    assert codec.encode(short) == codec.encode(long)
