"""TOPLOC: the completion was computed with the claimed weights, prompt and tokens (INTELLECT-2, section 2.3.1;
TOPLOC, section 4).
"""

from collections.abc import Mapping

import numpy as np

from shoal.contracts import toploc
from shoal.contracts.proof_profile import ProofProfile, thresholds_in_force
from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.top_points import Bool
from shoal.contracts.toploc import MalformedProofError, ProofErrors, Proofs
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.prefill import Prefill


def check_shape(file: File, facts: Facts) -> Finding | None:
    """Every row's proofs are bytes that an honest worker can write. Cheap, so for all rows."""
    for number, row in enumerate(file.rows):
        try:
            _parse(row, facts)
        except MalformedProofError as error:
            return reject("computation", f"row {number}: {error}")
    return None


def check(
    file: File, prefills: Mapping[int, Prefill], facts: Facts, profile: ProofProfile | None = None
) -> Finding | None:
    """Proofs of the rows in `prefills` (by row number) fit the states of our own forward pass, chunk by chunk.

    `profile`: that of the version's folder, with the dimensions that proofs leave out and the calibrated thresholds.
    """
    thresholds = thresholds_in_force(facts.validation.thresholds, profile)
    masked = profile.mask() if profile is not None else None
    for number, ours in prefills.items():
        row = file.rows[number]
        for chunk, errors in enumerate(_errors(row, ours, facts, masked)):
            if not toploc.accept(errors, thresholds):
                return reject(
                    "computation",
                    f"row {number}, proof {chunk} does not fit version {file.policy_version}: "
                    f"{errors.exponent_mismatches} exponents and {errors.sign_mismatches} signs differ "
                    f"(allowed together {thresholds.max_exponent_mismatches}), mantissa error mean "
                    f"{errors.mantissa_error_mean:.2f} (allowed {thresholds.max_mantissa_error_mean}), median "
                    f"{errors.mantissa_error_median:.1f} (allowed {thresholds.max_mantissa_error_median})",
                )
    return None


def _parse(row: Rollout, facts: Facts) -> list[Proofs]:
    """The proofs of each stretch of sampled tokens, one after the other in `row.proofs`. Raises MalformedProofError."""
    lengths = [stretch.stop - stretch.start for stretch in sampled_stretches(row.completion_mask)]
    ends = np.cumsum([toploc.proof_count(length) * toploc.PROOF_BYTES for length in lengths]).tolist()
    if len(row.proofs) > ends[-1]:
        raise MalformedProofError(
            f"{len(row.proofs)} bytes of proofs for {sum(lengths)} tokens: {ends[-1] // toploc.PROOF_BYTES} proofs"
            f" of {toploc.PROOF_BYTES} bytes are {ends[-1]}"
        )
    return [
        toploc.parse(row.proofs[start:end], length, facts.hidden_size)
        for length, start, end in zip(lengths, [0, *ends], ends, strict=False)
    ]


def _errors(row: Rollout, ours: Prefill, facts: Facts, masked: Bool | None) -> list[ProofErrors]:
    """Errors of every proof of a row; `ours.states` are those of its sampled tokens."""
    found, start = [], 0
    for proofs, stretch in zip(_parse(row, facts), sampled_stretches(row.completion_mask), strict=True):
        end = start + stretch.stop - stretch.start
        found += toploc.compare(proofs, ours.states[start:end], masked)
        start = end
    return found
