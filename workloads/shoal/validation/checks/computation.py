"""TOPLOC: the completion was computed with the claimed weights, prompt and tokens (INTELLECT-2, section 2.3.1;
TOPLOC, section 4).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.contracts.proof_profile import ProofProfile
from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.thresholds import ProofThresholds
from shoal.proofs.reduction import points
from shoal.toploc import codec
from shoal.toploc.codec import MalformedProofError, ProofErrors, Proofs
from shoal.toploc.top_points import Bool
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


def measure(
    file: File, prefills: Mapping[int, Prefill], facts: Facts, profile: ProofProfile | None = None
) -> dict[int, list[ProofErrors]]:
    """How far the proofs of the rows in `prefills` are from the states of our own forward pass, by row number, a chunk each.

    `profile`: that of the version's folder, with the dimensions that proofs leave out.
    """
    masked = profile.mask() if profile is not None else None
    return {number: _errors(file.rows[number], ours, facts, masked) for number, ours in prefills.items()}


def check(file: File, found: Mapping[int, Sequence[ProofErrors]], thresholds: ProofThresholds) -> Finding | None:
    """Every chunk whose errors `measure` found is within its bounds."""
    for number, chunks in found.items():
        for chunk, errors in enumerate(chunks):
            if not codec.accept(errors, thresholds):
                return reject(
                    "computation",
                    f"row {number}, proof {chunk} does not fit version {file.policy_version}: "
                    f"{errors.exponent_mismatches} exponents and {errors.sign_mismatches} signs differ "
                    f"(allowed together {thresholds.max_exponent_mismatches}), mantissa error mean "
                    f"{errors.mantissa_error_mean:.2f} (allowed {thresholds.max_mantissa_error_mean}), median "
                    f"{errors.mantissa_error_median:.1f} (allowed {thresholds.max_mantissa_error_median})",
                )
    return None


def check_mean(
    file: File, prefills: Mapping[int, Prefill], thresholds: ProofThresholds, chance: float
) -> Finding | None:
    """The chunks of all rows seen so far are within the bound on their mean: weights too near for a single chunk to tell add up.

    `chance`: how often an honest file may be rejected here.
    """
    errors = np.concatenate([ours.proof_errors for ours in prefills.values()])
    if not len(errors):
        return None
    mean, allowed = float(errors.mean(dtype=float)), codec.file_mean_allowed(thresholds, len(errors), chance)
    if mean <= allowed:
        return None
    return reject(
        "computation",
        f"{len(errors)} proofs of {len(prefills)} rows are together too far from version {file.policy_version}: "
        f"mantissa error {mean:.3f} on average (allowed {allowed:.3f})",
    )


def _parse(row: Rollout, facts: Facts) -> list[Proofs]:
    """The proofs of each stretch of sampled tokens, one after the other in `row.proofs`. Raises MalformedProofError."""
    lengths = [stretch.stop - stretch.start for stretch in sampled_stretches(row.completion_mask)]
    ends = np.cumsum([codec.proof_count(length) * codec.PROOF_BYTES for length in lengths]).tolist()
    if len(row.proofs) > ends[-1]:
        raise MalformedProofError(
            f"{len(row.proofs)} bytes of proofs for {sum(lengths)} tokens: {ends[-1] // codec.PROOF_BYTES} proofs"
            f" of {codec.PROOF_BYTES} bytes are {ends[-1]}"
        )
    return [
        codec.parse(row.proofs[start:end], length, facts.hidden_size)
        for length, start, end in zip(lengths, [0, *ends], ends, strict=False)
    ]


def _errors(row: Rollout, ours: Prefill, facts: Facts, masked: Bool | None) -> list[ProofErrors]:
    """Errors of every proof of a row; `ours.hidden` are the states of its sampled tokens, reduced to points where they are."""
    found, start = [], 0
    for proofs, stretch in zip(_parse(row, facts), sampled_stretches(row.completion_mask), strict=True):
        end = start + stretch.stop - stretch.start
        found += codec.compare_points(proofs, *points(ours.hidden[start:end], masked)).rows()
        start = end
    return found
