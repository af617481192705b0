"""How uploads are checked: `validators.validation` of a manifest, and a part of `config/run.json`. Pure."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import LARGEST_INTEGER, Probability, SpecModel, unset
from shoal.contracts.thresholds import ProofThresholds

PROGRAM_SECONDS = 1800


class Validation(SpecModel):
    """How uploads are checked (paper section 2.3)."""

    proof_rows_share: Probability = Field(0.1, description="Share of a file's rows whose proofs are verified.")
    proof_rows_floor: int = Field(
        4, ge=1, le=65536, description="Least number of rows whose proofs are verified, whatever the share."
    )
    thresholds: ProofThresholds | None = Field(
        None,
        description="TOPLOC tolerances of one chunk. Absent: those that prepare calibrated for the model and its data type (docs/toploc.md).",
    )
    min_eos_probability: Probability = Field(
        0.1,
        description="A file is rejected when an end-of-sequence token is less likely than this: somebody stopped the completion early.",
    )
    max_low_probability_share: Probability = Field(
        0.15, description="Greatest share of sampled tokens with a probability below 0.05, beyond the expected share."
    )
    slashing: Literal["Evict", "Discard"] = Field(
        "Evict",
        description="What happens to the node of a rejected file. Evict: it leaves the run forever. Discard: it loses the file only.",
    )
    slash_votes: int = Field(
        1,
        ge=1,
        le=16,
        description="Validators that must agree before a reject stands. With 1, a statistical reject still needs a second finding.",
    )
    claim_seconds: int = Field(
        60,
        ge=1,
        le=3600,
        description="Seconds without progress before a claimed file goes to another validator.",
    )
    probation_files: int = Field(
        10,
        ge=0,
        le=100_000,
        description="Accepted files in a row until which all rows of a node's files are verified. Afterwards the share falls as 1 / files.",
    )
    false_reject_rate: float = Field(
        1e-4, gt=0.0, le=0.05, description="Greatest chance that a statistical check rejects an honest file."
    )
    miss_rate: float = Field(
        0.01, gt=0.0, le=0.5, description="Chance that the sequential test stops early on rows of another temperature."
    )
    program_seconds: int = Field(
        PROGRAM_SECONDS,
        exclude_if=lambda seconds: seconds == PROGRAM_SECONDS,
        ge=1,
        le=86_400,
        description="CPU seconds that scoring one file may take in programs, judges and others' environments. Rows after that are not scored.",
    )
    weights_memory_bytes: int | None = Field(
        None,
        exclude_if=unset,
        ge=1,
        le=LARGEST_INTEGER,
        description="Bytes of weights that one validator holds, on all its GPUs together. At least one version must fit. "
        "Absent: 85 % of the memory of its GPUs; without GPUs 60 % of the pod's.",
    )
    redraw: Literal["Auto", "Off"] = Field(
        "Auto",
        description="Not used: `sampler` of each pool says it. Manifests of 0.2.0 may have this field.",
    )
