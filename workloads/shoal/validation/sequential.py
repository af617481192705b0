"""How many rows of a file are looked at: where to start, and when to stop.

Pure. In: what the ledger says of the node, and what has been found so far. Out: numbers of rows, and whether to continue. Called by `judge`, which
draws the rows themselves from randomness of its own, after the upload is sealed.

A node on probation has every row checked, and so has a file on which another check gave a statistical reject. After that the share falls as
`probation files / accepted files` to the run's floor. Where the sampler's choices are drawn again (`checks/redraw`), each row says for itself whether
it is right, and the rows drawn first are all. Where that is impossible, what rows say is statistical: Wald's sequential probability ratio test
(Sequential tests of statistical hypotheses, Annals of Mathematical Statistics 16, 1945) says when it suffices: the run's temperature against one a
fifth lower and one a quarter higher. Rows are then added, doubling their number, until the file is rejected, accepted or at its end.
"""

import math
from collections.abc import Collection, Sequence

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.validation import Validation
from shoal.validation.prefill import OTHER_TEMPERATURES, Prefill

PARTS = 7
"""What shares `false_reject_rate`: improbable tokens, surprise, ends, the mean error of proofs, outliers, the budget of gaps, and this test."""


def first_rows(rows: int, job: ValidationJob, validation: Validation) -> int:
    """How many of a file's rows are looked at before anything is decided."""
    if job.on_probation or job.second_opinion:
        return rows
    earned = validation.probation_files / max(1, job.accepted_files)
    share = min(1.0, max(validation.proof_rows_share, earned))
    return min(rows, max(validation.proof_rows_floor, math.ceil(share * rows)))


def looks(rows: int, first: int) -> list[int]:
    """How many rows have been looked at after each look: `first`, twice as many, and so on to all `rows`."""
    counts = [first]
    while counts[-1] < rows:
        counts.append(min(rows, 2 * counts[-1]))
    return counts


def chance_of_a_part(validation: Validation, looks_at_most: int) -> float:
    """How often one statistical check may reject an honest file at one of its looks: the bound on the file is the sum over parts and looks."""
    return validation.false_reject_rate / (PARTS * looks_at_most)


def of_a_stratum(validation: Validation, strata: int) -> Validation:
    """The same for one of several parts of a file that are each judged alone: they share what may be rejected of honest files."""
    if strata == 1:
        return validation
    return validation.model_copy(update={"false_reject_rate": validation.false_reject_rate / strata})


def ratios(prefills: Collection[Prefill]) -> tuple[float, float]:
    """Natural logarithms of the likelihood ratios of all tokens so far, colder and hotter against the run's temperature."""
    colder = sum(float(ours.colder.sum(dtype=float)) for ours in prefills)
    hotter = sum(float(ours.hotter.sum(dtype=float)) for ours in prefills)
    return colder, hotter


def other_temperature(found: Sequence[float], validation: Validation) -> str | None:
    """The fault, in words, when one of the `ratios` is beyond Wald's upper border; or None.

    Under the run's temperature each ratio is a martingale of mean 1. So it ever exceeds 1 / chance with at most that chance (Ville, 1939),
    however often it is looked at: no correction for looks, half of the part's chance for each of the two.
    """
    border = -math.log(chance_of_a_part(validation, looks_at_most=len(found)))
    for ratio, share in zip(found, OTHER_TEMPERATURES, strict=True):
        if ratio >= border:
            return (
                f"tokens are e^{ratio:.1f} times as likely at {share:g} of the run's temperature as at the run's "
                f"(allowed e^{border:.1f})"
            )
    return None


def undecided(prefills: Collection[Prefill], rows: int, validation: Validation) -> bool:
    """Whether more of the file's `rows` must be looked at: a ratio is between Wald's borders, and the rest can move it beyond one.

    What the rest can bring is the mean of a ratio when its alternative is true; for a temperature's share s it is close to
    (1 - 1/s)**2 / 2 times the variance of the surprise. A policy that is sure of every token tells temperatures apart in no number of rows.
    """
    if any(ours.gaps is not None for ours in prefills) or len(prefills) == rows:
        return False
    lower = math.log(validation.miss_rate)
    border = -math.log(chance_of_a_part(validation, looks_at_most=len(OTHER_TEMPERATURES)))
    variance = sum(float(ours.surprise_variance.sum(dtype=float)) for ours in prefills)
    for ratio, share in zip(ratios(prefills), OTHER_TEMPERATURES, strict=True):
        whole_file = 0.5 * (1.0 - 1.0 / share) ** 2 * variance * rows / len(prefills)
        if lower < ratio < border and whole_file >= border:
            return True
    return False
