"""TOPLOC: the completion was computed with the claimed weights, prompt and tokens (INTELLECT-2, section 2.3.1;
TOPLOC, section 4).
"""

from collections.abc import Mapping

from shoal.contracts import toploc
from shoal.contracts.toploc import MalformedProofError, Proofs
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.prefill import Prefill


def check_shape(file: File, facts: Facts) -> Finding | None:
    """Every row's proofs are bytes that an honest worker can write. Cheap, so for all rows."""
    for number, row in enumerate(file.rows):
        try:
            toploc.parse(row.proofs, len(row.completion_tokens), facts.hidden_size)
        except MalformedProofError as error:
            return reject("computation", f"row {number}: {error}")
    return None


def check(file: File, prefills: Mapping[int, Prefill], facts: Facts) -> Finding | None:
    """Proofs of the rows in `prefills` (by row number) fit the states of our own forward pass, chunk by chunk."""
    thresholds = facts.validation.thresholds
    for number, ours in prefills.items():
        row = file.rows[number]
        proofs: Proofs = toploc.parse(row.proofs, len(row.completion_tokens), facts.hidden_size)
        for chunk, errors in enumerate(toploc.compare(proofs, ours.states)):
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
