"""Tolerances of proofs and of drawn tokens: in `thresholds` of a validator, and in a checkpoint's `proof_profile.json`. Pure."""

from pydantic import Field

from shoal.contracts.base import Probability, SpecModel


class FileMean(SpecModel):
    """Bound on the mean of the mantissa errors over a file's verified chunks: for a type of serving in which one chunk says little."""

    bound: float = Field(ge=0.0, le=10.0, description="Greatest mean over a large number of chunks.")
    deviation: float = Field(
        ge=0.0,
        le=10.0,
        description="Standard deviation of one honest chunk. The bound is wider when a file has few verified chunks.",
    )


class DrawnGaps(SpecModel):
    """How far a file's tokens may be behind those that their seeds draw, in nats at temperature 1: rounding decides where two are nearly equal."""

    share: Probability = Field(description="Greatest share of tokens that are behind at all, over many tokens.")
    mean: float = Field(ge=0.0, le=1.0, description="Greatest mean over many tokens; a token that is drawn counts 0.")
    deviation: float = Field(
        ge=0.0, le=1.0, description="Standard deviation of one token. The bound is wider when a file has few tokens."
    )
    largest: float = Field(gt=0.0, le=2.0, description="The farthest that one token may be behind.")
    outliers: float | None = Field(
        None,
        gt=0.0,
        le=0.01,
        exclude_if=lambda share: share is None,
        description="Greatest share of tokens that are farther behind, over many tokens. Its row is left out. Absent: it rejects the file.",
    )


class ProofThresholds(SpecModel):
    """TOPLOC tolerances of one chunk; the published bf16 values are the upper bound (TOPLOC, section 4)."""

    max_exponent_mismatches: int = Field(38, ge=0, le=38, description="Most exponents that may differ, of 128 values.")
    max_mantissa_error_mean: float = Field(10.0, ge=0.0, le=10.0, description="Greatest mean error of the mantissas.")
    max_mantissa_error_median: float = Field(8.0, ge=0.0, le=8.0, description="Greatest median error of the mantissas.")
    file_mean: FileMean | None = Field(
        None,
        description="Bound on a whole file, as `shoal calibrate --engine` measures it; absent: chunks alone are judged.",
    )
    drawn_gaps: DrawnGaps | None = Field(
        None,
        exclude_if=lambda gaps: gaps is None,
        description="Budget of a file's tokens, as `shoal calibrate --engine` measures it; absent: one that fits any engine of the data type.",
    )
