"""What is known about proofs of one model: the dimensions that they leave out, the thresholds, and how often each goes wrong.

A profile is the file `proof_profile.json` in a checkpoint's folder. Prepare measures it on the base model (`proofs.calibration`, `shoal calibrate`);
the trainer copies it, like the tokenizer, to every version, so that the signed manifest of a version's weights seals it. Workers read the mask,
validators the mask and the thresholds, the orchestrator shows both. A checkpoint without the file masks nothing.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from shoal.contracts.base import Contract, unset
from shoal.contracts.pools import Logits, Quantization
from shoal.contracts.thresholds import DrawnGaps, ProofThresholds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PROFILE_FILE = "proof_profile.json"
PROFILE_BYTES = 1 << 20
"""Largest profile that is read: the mask of a model 16,384 wide takes 50 KB."""
MOST_MASKED = 0.5
"""Largest share of dimensions that may be masked: what is left must still say something about the model."""

Dimension = Annotated[int, Field(ge=0, lt=1 << 20)]


class ErrorRate(Contract):
    """How often something happened, with its two-sided 95 % interval (Clopper and Pearson, Biometrika 26, 1934)."""

    events: int = Field(ge=0)
    trials: int = Field(ge=0)
    low: float = Field(ge=0.0, le=1.0)
    high: float = Field(ge=0.0, le=1.0)

    @property
    def share(self) -> float:
        """Events among trials; 0 when there was no trial."""
        return self.events / self.trials if self.trials else 0.0


class Control(Contract):
    """A kind of dishonest proof and how often it passes the thresholds, by chunk and by file of `CalibrationSize.file_sequences` sequences."""

    name: str = Field(min_length=1, max_length=63)
    chunks: ErrorRate
    files: ErrorRate


class CalibrationSize(Contract):
    """Size of the measurement. Honest proofs come from decoding with a cache of keys and values, the states that they are compared with from one
    pass."""

    prover: str = Field(min_length=1, max_length=63, description="software that decoded")
    sequences: int = Field(ge=1)
    tokens: int = Field(ge=1)
    chunks: int = Field(ge=1)
    file_sequences: int = Field(ge=1)


class HonestErrors(Contract):
    """Errors of honest proofs: largest ones seen, and how often the thresholds reject."""

    max_mismatches: int = Field(ge=0, le=128, description="exponents and signs together")
    max_mantissa_error_mean: float = Field(ge=0.0, le=127.0)
    max_mantissa_error_median: float = Field(ge=0.0, le=127.0)
    rejected_chunks: ErrorRate
    rejected_files: ErrorRate


class ProofProfile(Contract):
    """The document `proof_profile.json`."""

    schema_version: Literal[1] = 1
    hidden_size: int = Field(ge=128, lt=1 << 20)
    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="type of serving that this was measured in")
    quantization: Quantization | None = Field(
        default=None, exclude_if=unset, description="how the weights were rounded; None: not at all"
    )
    logits: Logits | None = Field(
        default=None,
        exclude_if=unset,
        description="how the engine whose tokens set the budget kept logits of halves; None: no engine did, weights are float32, or as the weights",
    )
    masked_dimensions: list[Dimension] = Field(default_factory=list, max_length=1 << 19, description="ascending")
    thresholds: ProofThresholds
    size: CalibrationSize
    honest: HonestErrors
    controls: list[Control] = Field(default_factory=list, max_length=64)

    @model_validator(mode="after")
    def _mask_fits(self) -> Self:
        masked = self.masked_dimensions
        if masked != sorted(set(masked)) or (masked and masked[-1] >= self.hidden_size):
            raise ValueError(
                f"masked_dimensions must be ascending, each once, and below hidden_size {self.hidden_size}"
            )
        if len(masked) > MOST_MASKED * self.hidden_size:
            raise ValueError(f"{len(masked)} of {self.hidden_size} dimensions are masked; at most half are allowed")
        return self

    def mask(self) -> "npt.NDArray[np.bool_] | None":
        """bool [hidden size], true for masked dimensions, as `toploc` takes it; None when there are none."""
        if not self.masked_dimensions:
            return None
        import numpy as np  # the operator reads these documents too, and has no arrays

        mask = np.zeros(self.hidden_size, dtype=np.bool_)
        mask[self.masked_dimensions] = True
        return mask


class WrongProfile(ValueError):
    """The file is not a profile of the model beside it; the message says what is wrong."""


def read_profile(folder: Path, hidden_size: int) -> ProofProfile | None:
    """The profile of the checkpoint in `folder`, whose model is `hidden_size` wide; None when it has none. Raises WrongProfile."""
    path = folder / PROFILE_FILE
    if not path.exists():
        return None
    if path.stat().st_size > PROFILE_BYTES:
        raise WrongProfile(f"{path}: {path.stat().st_size} bytes; at most {PROFILE_BYTES} are allowed")
    return parse_profile(path.read_bytes(), hidden_size, str(path))


def parse_profile(data: bytes, hidden_size: int, name: str = PROFILE_FILE) -> ProofProfile:
    """`read_profile` of bytes; `name` says in errors where they are from."""
    try:
        profile = ProofProfile.from_json(data)
    except ValueError as error:
        raise WrongProfile(f"{name}: {error}") from None
    if profile.hidden_size != hidden_size:
        raise WrongProfile(
            f"{name}: is of a model {profile.hidden_size} wide, this one is {hidden_size} wide: calibrate again (`shoal calibrate`)"
        )
    return profile


def thresholds_in_force(given: ProofThresholds | None, profile: ProofProfile | None) -> ProofThresholds:
    """The manifest's thresholds; where it gives none the calibrated ones; where there are none either the published ones."""
    if given is not None:
        return given
    return profile.thresholds if profile is not None else ProofThresholds()


DRAWN_GAPS = {
    "float32": DrawnGaps(share=1e-4, mean=1e-7, deviation=2e-5, largest=2e-3),
    "bfloat16": DrawnGaps(share=0.04, mean=2e-3, deviation=0.02, largest=0.5),
    "float16": DrawnGaps(share=0.006, mean=5e-5, deviation=0.003, largest=0.1),
}
"""By the dtype of the weights, where nothing was calibrated. float32: log-probabilities of vLLM and transformers differ by 5e-6 on a CPU, with a
margin. bfloat16: SmolLM2-135M-Instruct had a share of 0.029 when logits were rounded to it, and 0.021 in float32 (ADR 0141).
float16 has three bits more."""


def drawn_gaps_in_force(given: ProofThresholds | None, profile: ProofProfile | None, dtype: str) -> DrawnGaps:
    """The manifest's budget, else the calibrated one, else that of the dtype of the weights. Thresholds without a budget leave the calibrated one in
    force: whoever sets a bound for proofs does not mean to give away tokens."""
    own = given.drawn_gaps if given is not None else None
    calibrated = profile.thresholds.drawn_gaps if profile is not None else None
    return own or calibrated or DRAWN_GAPS[dtype]


def outliers_in_force(given: ProofThresholds | None, profile: ProofProfile | None) -> float | None:
    """Honest outliers a token by the budget in force; None: no row is left out. The defaults know of none."""
    return drawn_gaps_in_force(given, profile, profile.dtype if profile is not None else "float32").outliers


class ProofTerms(Contract):
    """The part of `GET /v1/run` about proofs. The rates are those of the calibrated thresholds, None and empty while others are in force."""

    thresholds: ProofThresholds
    calibrated: bool
    masked_dimensions: int = Field(default=0, ge=0)
    quantization: Quantization | None = Field(
        default=None, exclude_if=unset, description="how the weights are rounded that proofs are of"
    )
    honest: HonestErrors | None = None
    controls: list[Control] = Field(default_factory=list, max_length=64)

    @classmethod
    def in_force(cls, given: ProofThresholds | None, profile: ProofProfile | None) -> Self:
        """The terms of a run whose manifest gives `given` and whose base model has `profile`."""
        thresholds = thresholds_in_force(given, profile)
        masked = len(profile.masked_dimensions) if profile is not None else 0
        rounding = profile.quantization if profile is not None else None
        if profile is None or thresholds != profile.thresholds:
            return cls(thresholds=thresholds, calibrated=False, masked_dimensions=masked, quantization=rounding)
        return cls(
            thresholds=thresholds,
            calibrated=True,
            masked_dimensions=masked,
            quantization=rounding,
            honest=profile.honest,
            controls=profile.controls,
        )
