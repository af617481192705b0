"""TOPLOC proofs against their definition, computed here by Lagrange's formula with Python's own integers."""

import struct

import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.contracts.thresholds import FileMean, ProofThresholds
from shoal.toploc import codec
from shoal.toploc.codec import MalformedProofError, ProofErrors
from shoal.toploc.top_points import bfloat16_bits

HIDDEN = 128


def states(tokens: int, hidden: int = HIDDEN, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, hidden)).astype(np.float32)


FUZZ_STATES = states(65, 4096)


def lagrange_value(points: list[tuple[int, int]], x: int) -> int:
    """The interpolating polynomial at x, straight from its definition."""
    total = 0
    for i, (xi, yi) in enumerate(points):
        numerator, denominator = 1, 1
        for j, (xj, _) in enumerate(points):
            if i != j:
                numerator = numerator * (x - xj) % 65497
                denominator = denominator * (xi - xj) % 65497
        total += yi * numerator * pow(denominator, -1, 65497)
    return total % 65497


def bfloat16_by_struct(value: float) -> int:
    """Round to bfloat16 by comparing the two neighbours, which no bit trick is needed for."""
    bits = struct.unpack(">I", struct.pack(">f", value))[0]
    low, rest = bits >> 16, bits & 0xFFFF
    if rest > 0x8000 or (rest == 0x8000 and low & 1):
        return low + 1
    return low


def slow_points(flat: list[float]) -> list[tuple[int, int]]:
    largest = sorted(range(len(flat)), key=lambda i: (-abs(flat[i]), i))[:128]
    return [(i, bfloat16_by_struct(flat[i])) for i in largest]


def words(proof: bytes) -> list[int]:
    return list(struct.unpack(">129H", proof))


def proof_of(words_: list[int]) -> bytes:
    return struct.pack(">129H", *words_)


def test_a_proof_is_the_polynomial_through_the_128_largest_values() -> None:
    hidden = states(32)
    modulus, *coefficients = words(codec.encode(hidden))
    points = slow_points(hidden.reshape(-1).tolist())
    assert modulus == 65497
    for x, y in points:
        assert sum(c * pow(x, i, 65497) for i, c in enumerate(coefficients)) % 65497 == y
    for x in (0, 1, 4095, 65496):  # away from the points too, so the degree is right
        assert sum(c * pow(x, i, 65497) for i, c in enumerate(coefficients)) % 65497 == lagrange_value(points, x)


def test_interpolation_has_known_small_answers() -> None:
    # By hand: 42; 2x + 1; x^2 (through 1, 4, 9); (x^2 + 1) / 2 needs the inverse of 2, 32749.
    assert codec.interpolate(np.array([[7]]), np.array([[42]])).tolist() == [[42]]
    assert codec.interpolate(np.array([[0, 1]]), np.array([[1, 3]])).tolist() == [[1, 2]]
    assert codec.interpolate(np.array([[3, 1, 2]]), np.array([[9, 1, 4]])).tolist() == [[0, 0, 1]]
    assert codec.interpolate(np.array([[1, 3, 5]]), np.array([[1, 5, 13]])).tolist() == [[32749, 0, 32749]]


def test_the_bytes_are_big_endian_modulus_then_coefficients_from_the_lowest_degree() -> None:
    # Values 1.0 (0x3F80) at indices 0..127 are the constant 0x3F80; one 2.0 at index 0 adds 0x80 * L_0(x), whose
    # value at 0 is 1: so the lowest coefficient is 0x3F80 + 0x80 = 0x4000, and the second word of the proof.
    hidden = np.ones((1, HIDDEN), dtype=np.float32)
    hidden[0, 0] = 2.0
    proof = codec.encode(hidden)
    assert proof[:4] == bytes([0xFF, 0xD9, 0x40, 0x00])
    # L_0's leading coefficient is 1 / prod(0 - j) for j = 1..127 = -1 / 127!
    factorial = 1
    for j in range(1, 128):
        factorial = factorial * j % 65497
    assert words(proof)[-1] == -0x80 * pow(factorial, -1, 65497) % 65497


def test_a_completion_has_one_proof_for_each_32_tokens_and_one_for_the_rest() -> None:
    hidden = states(70)
    assert codec.encode(hidden) == b"".join(codec.encode(hidden[i : i + 32]) for i in (0, 32, 64))
    assert len(codec.encode(hidden)) == 3 * 258
    assert codec.encode(states(0)) == b""


def test_the_modulus_is_the_largest_under_which_indices_stay_apart() -> None:
    assert codec.injective_modulus(np.array([0, 1, 65496])) == 65497
    assert codec.injective_modulus(np.array([0, 65497])) == 65496
    assert codec.injective_modulus(np.array([0, 65497, 65496, 65495])) == 65494
    with pytest.raises(ValueError, match="no modulus between 32768 and 65497"):
        # Every number from 32768 to 65709 is a difference of two of these.
        codec.injective_modulus(np.array([*range(181), *range(32768 + 180, 65498 + 181, 181)]))


def test_a_wide_model_wraps_its_indices_and_still_compares_to_itself() -> None:
    hidden = np.zeros((32, 4096), dtype=np.float32)
    flat = hidden.reshape(-1)
    flat[:127] = np.linspace(1, 2, 127, dtype=np.float32)
    flat[65497] = 3.0  # collides with index 0 under the prime
    proof = codec.encode(hidden)
    assert words(proof)[0] == 65497 - 127  # below that, 65497 mod m is 127 or more, where there is no point
    assert codec.compare(codec.parse(proof, 32, 4096), hidden) == [ProofErrors(0, 0, 0.0, 0.0)]


def test_of_equal_values_the_lowest_indices_are_taken() -> None:
    indices, bits = codec.top_points(np.full((1, 200), -1.5, dtype=np.float32))
    assert indices.tolist() == [list(range(128))]
    assert set(bits[0].tolist()) == {0xBFC0}


@given(st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=1))
def test_rounding_to_bfloat16_is_to_nearest_even(values: list[float]) -> None:
    assert bfloat16_bits(np.array(values, dtype=np.float32)).tolist() == [bfloat16_by_struct(v) for v in values]


def test_an_honest_proof_has_no_error() -> None:
    hidden = states(45)
    assert codec.compare(codec.parse(codec.encode(hidden), 45, HIDDEN), hidden) == [ProofErrors(0, 0, 0.0, 0.0)] * 2


def test_signs_exponents_and_mantissas_are_counted_apart() -> None:
    base = np.linspace(1.0, 1.9, 128, dtype=np.float32).reshape(1, 128)
    proofs = codec.parse(codec.encode(base), 1, HIDDEN)
    flipped, doubled, nudged = base.copy(), base.copy(), base.copy()
    flipped[0, :5] *= -1
    doubled[0, :7] *= 2
    nudged += 3 / 128  # three units of the mantissa everywhere
    assert codec.compare(proofs, flipped) == [ProofErrors(0, 5, 0.0, 0.0)]
    assert codec.compare(proofs, doubled) == [ProofErrors(7, 0, 0.0, 0.0)]
    errors = codec.compare(proofs, nudged)[0]
    assert (errors.exponent_mismatches, errors.sign_mismatches) == (0, 0)
    assert errors.mantissa_error_mean == pytest.approx(3.0, abs=0.1)
    assert errors.mantissa_error_median == 3.0
    assert codec.compare(proofs, base * 8)[0].mantissa_error_mean == float("inf")


def test_thresholds_are_inclusive_and_each_can_reject() -> None:
    published = ProofThresholds()
    assert codec.accept(ProofErrors(38, 0, 10.0, 8.0), published)
    assert not codec.accept(ProofErrors(39, 0, 0.0, 0.0), published)
    assert not codec.accept(ProofErrors(30, 9, 0.0, 0.0), published)
    assert not codec.accept(ProofErrors(0, 0, 10.1, 0.0), published)
    assert not codec.accept(ProofErrors(0, 0, 0.0, 8.1), published)


def test_forged_proofs_fail_even_the_published_thresholds() -> None:
    hidden = states(32)
    random = np.random.default_rng(1)
    for _ in range(200):
        forged = proof_of([65497, *random.integers(1, 65497, 128).tolist()])
        assert not codec.accept(codec.compare(codec.parse(forged, 32, HIDDEN), hidden)[0], ProofThresholds())


def test_the_parser_names_the_rule_that_is_broken() -> None:
    honest = words(codec.encode(states(32)))
    assert len(codec.parse(proof_of(honest), 32, HIDDEN).moduli) == 1

    def refusal(data: bytes, tokens: int = 32, hidden_size: int = HIDDEN) -> str:
        with pytest.raises(MalformedProofError) as caught:
            codec.parse(data, tokens, hidden_size)
        return str(caught.value)

    assert "257 bytes of proofs for 32 tokens: 1 proofs of 258 bytes are 258" in refusal(proof_of(honest)[:-1])
    assert "516" in refusal(proof_of(honest), tokens=33)
    assert "modulus 0, allowed: 65497 to 65497" in refusal(proof_of([0, *honest[1:]]))
    assert "modulus 65496, allowed: 65497" in refusal(proof_of([65496, *honest[1:]]))
    assert "modulus 32767, allowed: 32768 to 65497" in refusal(proof_of([32767, *honest[1:]]), hidden_size=4096)
    assert "modulus 65498, allowed: 32768 to 65497" in refusal(proof_of([65498, *honest[1:]]), hidden_size=4096)
    assert "outside GF(65497)" in refusal(proof_of([*honest[:-1], 65497]))
    assert "degree is below 126" in refusal(proof_of([65497, 0x3F80] + [0] * 127))
    assert "degree is below 126" in refusal(proof_of([*honest[:-2], 0, 0]))
    assert codec.parse(proof_of([*honest[:-1], 0]), 32, HIDDEN).coefficients.shape == (1, 128)


@settings(max_examples=2000, deadline=None)
@given(data=st.one_of(st.binary(max_size=600), st.binary(min_size=258, max_size=258)), tokens=st.integers(0, 65))
def test_no_bytes_crash_the_parser_and_none_are_accepted(data: bytes, tokens: int) -> None:
    try:
        proofs = codec.parse(data, tokens, 4096)
    except MalformedProofError:
        return
    hidden = FUZZ_STATES[:tokens]
    assert not any(codec.accept(errors, ProofThresholds()) for errors in codec.compare(proofs, hidden))


def test_states_that_cannot_be_proven_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the codec's own refusal is asked for
    broken = states(3)
    broken[1, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        codec.encode(broken)
    with pytest.raises(ValueError, match="hidden size must be at least 128"):
        codec.encode(states(1, 64))
    with pytest.raises(ValueError, match=r"must be float32 \[tokens, hidden size\], or .*, not float64"):
        codec.encode(states(3).astype(np.float64))
    with pytest.raises(ValueError, match="1 proofs, but the states of 33 tokens make 2"):
        codec.compare(codec.parse(codec.encode(states(3)), 3, HIDDEN), states(33))


def test_few_chunks_may_be_further_off_together_than_many() -> None:
    bound = ProofThresholds(max_mantissa_error_mean=3.0, file_mean=FileMean(bound=0.5, deviation=0.1))
    chance = float(np.exp(-8.0))  # so that 2 ln(1 / chance) is 16
    assert codec.file_mean_allowed(bound, 1, chance) == pytest.approx(0.5 + 0.4 + 8.0)
    assert codec.file_mean_allowed(bound, 4, chance) == pytest.approx(0.5 + 0.2 + 2.0)
    assert codec.file_mean_allowed(bound, 400, chance) == pytest.approx(0.5 + 0.02 + 0.02)
    assert codec.file_mean_allowed(ProofThresholds(), 1, chance) == float("inf")


def test_honest_files_exceed_the_bound_on_their_mean_no_more_often_than_allowed_however_skewed_their_errors_are() -> (
    None
):
    rng, chance, files = np.random.default_rng(0), 0.01, 4000
    for chunks in (4, 16, 64):
        errors = 0.2 + 2.0 * (rng.random((files, chunks)) < 0.02)  # one chunk in fifty is far off
        thresholds = ProofThresholds(
            max_mantissa_error_mean=2.2, file_mean=FileMean(bound=0.24, deviation=2.0 * (0.02 * 0.98) ** 0.5)
        )
        beyond = errors.mean(axis=1) > codec.file_mean_allowed(thresholds, chunks, chance)
        assert beyond.mean() <= chance
