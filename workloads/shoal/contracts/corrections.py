"""Corrections for tokens that engine and trainer give different probabilities: the member `mismatchCorrection` of a recipe.

The ratio is p_trainer / p_sampler of a token: the trainer's policy at the start of the step, against the one that sampled. Part of `Recipe`. Pure.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from shoal.contracts.base import SpecModel


class CappedRatio(SpecModel):
    """A bound of the ratio from above."""

    cap: float = Field(2.0, ge=1.0, le=1000.0, description="Greatest ratio.")


class RatioBand(SpecModel):
    """IcePop's bounds (arXiv:2510.18855), with its defaults."""

    low: float = Field(0.5, ge=0.0, le=1.0, description="Least ratio.")
    high: float = Field(5.0, ge=1.0, le=1000.0, description="Greatest ratio.")


class SequenceBand(SpecModel):
    """Bounds of a completion's ratio, the geometric mean of its tokens' ratios."""

    low: float = Field(0.9, ge=0.0, le=1.0, description="Least mean ratio.")
    high: float = Field(1.1, ge=1.0, le=1000.0, description="Greatest mean ratio.")


class MismatchCorrection(SpecModel):
    """What becomes of a token whose ratio p_trainer / p_sampler is not 1: at most one of truncate, mask and icepop, with or without sequence."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    truncate: CappedRatio | None = Field(
        None, description="Truncated importance sampling: weigh the token by the ratio, at most the cap."
    )
    mask: CappedRatio | None = Field(
        None, description="Masked importance sampling: weigh the token by the ratio; above the cap it has no gradient."
    )
    icepop: RatioBand | None = Field(
        None, description="IcePop: weigh the token by the ratio; outside the band it has no gradient."
    )
    sequence: SequenceBand | None = Field(
        None, description="Drop a whole completion whose mean ratio is outside the band."
    )
    probabilities: Literal["Engine", "Recomputed"] = Field(
        "Engine",
        description="p_sampler: what the worker's engine reported, or computed again with the weights that sampled, at one more forward pass.",
    )

    @property
    def token(self) -> CappedRatio | RatioBand | None:
        """The bounds of a token's ratio; None where only completions are masked."""
        return self.truncate or self.mask or self.icepop
