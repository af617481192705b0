"""What a person chooses about a run: recipe, sampling, lengths, model, tasks, storage, validation.

These models are both the parts of `TrainingRun.spec` from which the CRD is generated and the parts of `config/run.json` that the processes
read: one definition, one set of defaults. Defaults are those of INTELLECT-2 (paper sections 3 and 4.1) unless the field says otherwise.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Recipe(SpecModel):
    """The GRPO recipe (paper sections 3.1 to 3.5 and 4.1)."""

    prompts_per_step: int = Field(256, ge=1, le=65536, description="Groups with signal that make a full rollout step.")
    group_size: int = Field(16, ge=2, le=1024, description="Completions sampled for each prompt.")
    optimizer_steps: int = Field(8, ge=1, le=1024, description="Optimizer updates made from one rollout step.")
    learning_rate: float = Field(3e-7, gt=0.0, le=1.0, description="Peak AdamW learning rate.")
    warmup_steps: int = Field(25, ge=0, le=100_000, description="Optimizer steps of linear warm-up, then constant.")
    adam_beta1: float = Field(0.9, ge=0.0, lt=1.0, description="AdamW first-moment decay.")
    adam_beta2: float = Field(0.99, ge=0.0, lt=1.0, description="AdamW second-moment decay.")
    weight_decay: float = Field(0.0, ge=0.0, le=1.0, description="AdamW decoupled weight decay.")
    max_grad_norm: float = Field(0.1, gt=0.0, le=1e6, description="Global gradient-norm clip (paper section 3.5).")
    clip_epsilon: float = Field(0.2, gt=0.0, lt=1.0, description="Half-width of the ratio clip.")
    clip_delta: float = Field(
        4.0, gt=1.0, le=1e6, description="Upper bound of the ratio for negative advantages (paper section 3.4)."
    )
    kl_coefficient: float = Field(0.001, ge=0.0, le=10.0, description="Weight of the KL penalty to the base model.")
    entropy_coefficient: float = Field(1e-4, ge=0.0, le=10.0, description="Weight of the entropy bonus.")
    normalize_advantages: bool = Field(True, description="Divide advantages by the standard deviation of their group.")
    online_filter: Literal["TaskReward", "TotalReward", "None"] = Field(
        "TaskReward",
        description="Which reward must differ within a group for it to carry signal (paper section 3.3.2).",
    )
    max_sequence_length: int = Field(
        32_768, ge=16, le=1_048_576, description="Tokens of prompt and completion together."
    )
    pack_length: int | None = Field(
        None,
        ge=16,
        le=4_194_304,
        description="Tokens of one packed micro-batch; the maximum sequence length if not set.",
    )


class Sampling(SpecModel):
    """How completions are sampled. Truncating samplers (top-p, top-k) bias the ratio and are not offered."""

    temperature: float = Field(1.0, gt=0.0, le=2.0, description="Sampling temperature.")
    max_completion_tokens: int = Field(30_720, ge=1, le=1_048_576, description="Longest completion in tokens.")
    groups_per_submission: int = Field(4, ge=1, le=4096, description="Prompts in one submitted file.")


class LengthReward(SpecModel):
    """The length penalty `alpha * |target - length|` with targets from a discrete set (paper section 3.1.2)."""

    targets: list[Annotated[int, Field(ge=1, le=1_048_576)]] = Field(
        [2000, 4000, 6000, 8000, 10000], min_length=1, max_length=64, description="Target lengths in tokens."
    )
    alpha: float = Field(0.0003, ge=0.0, le=1.0, description="Penalty for each token of difference.")


class GeneratedModel(SpecModel):
    """A tiny model made on the spot: for demos and tests, where no model hub is needed."""

    name: Literal["arithmetic"] = Field("arithmetic", description="Which shipped maker builds the model.")
    hidden_size: int = Field(128, ge=128, le=4096, description="Width of the model; a proof needs 128 values.")
    layers: int = Field(3, ge=1, le=64, description="Transformer layers.")
    warm_start_pass_rate: Probability = Field(
        0.3, description="Supervised warm start ends when this share of sampled answers is correct."
    )
    warm_start_max_steps: int = Field(400, ge=1, le=100_000, description="Longest supervised warm start, in updates.")


class ModelSource(SpecModel):
    """Where the base model comes from: exactly one of the fields."""

    hugging_face: ShortText | None = Field(None, description="Repository on a Hugging Face hub, `owner/name`.")
    revision: ShortText | None = Field(None, description="Revision of the repository; required with huggingFace.")
    path: ShortText | None = Field(None, description="Folder with a Hugging Face checkpoint, mounted into prepare.")
    generated: GeneratedModel | None = Field(None, description="A tiny model made on the spot.")


class TaskSource(SpecModel):
    """Which environment gives the tasks, and how many."""

    environment: ShortText = Field(..., description="Name of an installed environment (`shoal env list`).")
    count: int = Field(4096, ge=1, le=10_000_000, description="Number of tasks in the run's task table.")


class S3Storage(SpecModel):
    """An S3-compatible object store such as MinIO."""

    endpoint: ShortText = Field(..., description="URL of the store as the run's own parts reach it.")
    public_endpoint: ShortText | None = Field(None, description="URL of the store as strangers' machines reach it.")
    bucket: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(
        ..., description="Bucket; it must exist."
    )
    region: ShortText = Field("us-east-1", description="Region name that signatures are made for.")
    credentials_secret: ShortText = Field(..., description="Secret with `accessKey` and `secretKey`.")


class StorageSpec(SpecModel):
    """The object store: a folder by default, an S3-compatible store when `s3` is given."""

    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        "shoal", description="First part of every object key."
    )
    s3: S3Storage | None = Field(None, description="Use this store instead of a folder.")
    folder_size: ShortText = Field("20Gi", description="Size of the volume that holds the folder store.")


class ProofThresholds(SpecModel):
    """TOPLOC tolerances of one chunk; the published bf16 values are the upper bound (TOPLOC, section 4)."""

    max_exponent_mismatches: int = Field(38, ge=0, le=38, description="Of 128 values, how many exponents may differ.")
    max_mantissa_error_mean: float = Field(10.0, ge=0.0, le=10.0, description="Mean mantissa error allowed.")
    max_mantissa_error_median: float = Field(8.0, ge=0.0, le=8.0, description="Median mantissa error allowed.")


class Validation(SpecModel):
    """How uploads are checked (paper section 2.3)."""

    proof_rows_share: Probability = Field(0.1, description="Share of a file's rows whose proofs are verified.")
    proof_rows_floor: int = Field(4, ge=1, le=65536, description="Rows verified at least, whatever the share.")
    thresholds: ProofThresholds = ProofThresholds()
    min_eos_probability: Probability = Field(
        0.1, description="An end-of-sequence token less likely than this is a manipulated early stop."
    )
    max_low_probability_share: Probability = Field(
        0.15, description="Share of sampled tokens whose probability may lie below 0.05 in excess of what is expected."
    )
    claim_seconds: int = Field(
        60, ge=1, le=3600, description="A claimed file that gets no verdict for so long is given to another validator."
    )
