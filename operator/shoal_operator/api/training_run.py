"""TrainingRun: one run, from a base model and a task set to a trained model. The only kind that most people write."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import SpecModel
from shoal.contracts.recipe import LengthReward, ModelSource, Recipe, Sampling, StorageSpec, TaskSource, Validation
from shoal_operator.api.base import Conditions, ObjectMeta, PoolName, Quantity, Resources


class TrainerTemplate(SpecModel):
    """The trainer: one Job that does the updates."""

    resources: Resources = Field(default_factory=Resources, description="Resources of the trainer's container.")
    scratch_size: Quantity = Field(
        "20Gi", description="Volumes for checkpoints that wait to be published, and the origin."
    )


class InferencePoolTemplate(SpecModel):
    """The run's own pool of rollout workers."""

    name: PoolName = Field("pool", description="Name of the pool; its object is `<run>-<name>`.")
    replicas: int = Field(2, ge=0, le=10_000, description="Rollout workers.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one worker's engine.")
    weights_size: Quantity = Field("20Gi", description="Volume of each worker for policy versions.")


class RelayServerTemplate(SpecModel):
    """The relays that carry weights from the trainer to the workers."""

    replicas: int = Field(2, ge=0, le=256, description="Relays; each is listed singly, nothing balances between them.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one relay.")
    cache_size: Quantity = Field("20Gi", description="Volume of each relay for the last five versions.")
    shard_bytes: int = Field(16_777_216, ge=1024, le=1 << 34, description="Size of a shard of a policy version.")


class ValidatorTemplate(SpecModel):
    """The validators that check every uploaded file."""

    replicas: int = Field(1, ge=0, le=256, description="Validators.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one validator.")


class TrainingRunSpec(SpecModel):
    """What to train, on what, how, and with how many parts."""

    model: ModelSource = Field(..., description="Base model.")
    tasks: TaskSource = Field(..., description="Tasks to learn.")
    steps: int = Field(..., ge=1, le=999_999, description="Rollout steps; each makes one policy version.")
    seed: int = Field(0, ge=0, le=2_147_483_647, description="Seed of everything that the run itself draws.")
    recipe: Recipe = Field(default_factory=Recipe, description="The GRPO recipe.")
    sampling: Sampling = Field(default_factory=Sampling, description="How completions are sampled.")
    length_reward: LengthReward | None = Field(None, description="Length targets; absent: length does not count.")
    async_level: int = Field(
        2, ge=0, le=4, description="How many versions behind rollouts may be; 0 is synchronous (paper section 4.2)."
    )
    validation: Validation = Field(default_factory=Validation, description="How uploads are checked.")
    storage: StorageSpec = Field(default_factory=StorageSpec, description="Object store: a folder, or S3-compatible.")
    trainer: TrainerTemplate = Field(default_factory=TrainerTemplate, description="The trainer.")
    inference_pool: InferencePoolTemplate = Field(
        default_factory=InferencePoolTemplate, description="The run's own pool of rollout workers."
    )
    relay_server: RelayServerTemplate = Field(default_factory=RelayServerTemplate, description="The relays.")
    validator: ValidatorTemplate = Field(default_factory=ValidatorTemplate, description="The validators.")
    suspend: bool = Field(False, description="Stop every part and keep what the run has; false resumes.")


class TrainerStatus(SpecModel):
    """Which attempt the trainer is at."""

    attempt: int = Field(0, ge=0, description="Number of the current Job; grows when a new Job replaces it.")
    started_at_version: int = Field(0, ge=0, description="Newest policy version when the attempt began.")


class TrainingRunStatus(SpecModel):
    """What is known about the run; written by the operator only."""

    observed_generation: int | None = Field(None, ge=0, description="Generation of the spec that was acted on.")
    phase: str | None = Field(None, description="One word for printer columns; the conditions are the truth.")
    step: int | None = Field(None, ge=0, description="Open rollout step.")
    policy_version: int | None = Field(None, ge=0, description="Newest announced policy version.")
    reward: float | None = Field(None, description="Mean task reward of the last trained step.")
    gradient_norm: float | None = Field(None, description="Gradient norm of the last trained step, before the clip.")
    clip_ratio: float | None = Field(None, description="Share of completion tokens that were clipped.")
    policy_lag: float | None = Field(None, description="Mean versions between sampling and training.")
    accepted: int | None = Field(None, ge=0, description="Files accepted by validators.")
    rejected: int | None = Field(None, ge=0, description="Files rejected by validators.")
    eta_seconds: float | None = Field(None, ge=0, description="Estimated seconds to the end.")
    run_public_key: str | None = Field(None, description="Public key of the run: what strangers' machines trust.")
    trainer: TrainerStatus | None = Field(None, description="The trainer's current attempt.")
    conditions: Conditions = Field(default_factory=list, description="Conditions, one of each type.")


class TrainingRun(SpecModel):
    """One run: a base model, a task set, a recipe, a trained model at the end."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["TrainingRun"] = "TrainingRun"
    metadata: ObjectMeta
    spec: TrainingRunSpec
    status: TrainingRunStatus | None = None
